"""The search: a (1+1) evolution strategy over the logarithms of weights, with the 1/5 rule, inside a box.

It proposes and is told what the proposal gained and whether it was taken; how that is found out is not its business.
Steps are shares of each weight's range on the logarithmic scale and are at most a quarter of it, so a proposal is a
neighbour and not a corner, and one that would leave the box is reflected at its wall: the published tuner's steps grew
to three times the box, and its proposals were corners. Of several such steps the one is proposed that looks best after
all trials so far (`surface`), so that a trial that was rejected is not lost.
"""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import Final

from fairlead.core.evolution import Box, Weights
from fairlead.tuning.surface import Expected, Place, Seen, Surface

FIRST_STEP: Final = 0.2  # of a weight's range, as a standard deviation
MOST_STEP: Final = 0.25
LEAST_STEP: Final = 0.05  # smaller ones change less than any measurement here can tell
_GROWTH: Final = 1.5  # after a success; four failures undo it, so one success in five keeps the step
_OFFSPRING: Final = 8  # steps that one is chosen from
_REMEMBERED: Final = 100  # trials


class Search:
    """`incumbent` is the best known; `propose`, measure both, tell the gain, then `accept` or `reject`."""

    def __init__(self, start: Weights, box: Box, rng: Random) -> None:
        self.incumbent: Weights = {name: min(max(start[name], low), high) for name, (low, high) in box.items()}
        self.step = FIRST_STEP
        self._box = box
        self._rng = rng
        self._seen: deque[Seen] = deque(maxlen=_REMEMBERED)
        self._first: Weights | None = None  # to be proposed before any step

    @property
    def converged(self) -> bool:
        """Further steps would be too small to tell apart."""
        return self.step <= LEAST_STEP

    def propose(self) -> Weights:
        first, self._first = self._first, None
        if first is not None:
            return first
        here, surface = self._place(self.incumbent), self._surface()
        places = [
            tuple(_moved(part, self.step * self._rng.gauss(0.0, 1.0)) for part in here) for _ in range(_OFFSPRING)
        ]
        return self._weights(surface.best(places, self._rng))

    def expected(self, candidate: Weights) -> Expected:
        """The gain of `candidate` over the incumbent, after the trials so far."""
        return self._surface().expected(self._place(candidate))

    def learn(self, candidate: Weights, gain: float, error: float) -> None:
        """`candidate` was measured beside the incumbent: the gain of logarithms of times, and its standard error."""
        self._seen.append(Seen(self._place(candidate), self._place(self.incumbent), gain, error))

    def accept(self, candidate: Weights) -> None:
        self.incumbent = candidate
        self.step = min(self.step * _GROWTH, MOST_STEP)

    def reject(self) -> None:
        self.step = max(self.step * _GROWTH**-0.25, LEAST_STEP)

    def restart(self, start: Weights) -> None:
        """Search again around `start`, with large steps, and try the last incumbent first.

        Trials so far count no more: the traffic may be another.
        """
        self._first = self.incumbent if self.incumbent != start else None
        self.incumbent = start
        self.step = FIRST_STEP
        self._seen.clear()

    def _surface(self) -> Surface:
        return Surface(tuple(self._seen), self._place(self.incumbent))

    def _place(self, weights: Weights) -> Place:
        return tuple(math.log(weights[name] / low) / math.log(high / low) for name, (low, high) in self._box.items())

    def _weights(self, place: Place) -> Weights:
        bounds = zip(self._box.items(), place, strict=True)
        return {name: low * (high / low) ** part for (name, (low, high)), part in bounds}


def _moved(part: float, share: float) -> float:
    """`part` of a range moved by `share` of it, reflected at the ends."""
    place = (part + share) % 2.0
    return place if place <= 1.0 else 2.0 - place
