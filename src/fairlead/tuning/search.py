"""The search: a (1+1) evolution strategy over the logarithms of weights, with the 1/5 rule, inside a box.

It proposes, and is given the proposal's gain and whether it was accepted; how that is measured is up to the caller.
Steps are shares of each weight's range on the logarithmic scale and are at most a quarter of it, so a proposal is a
neighbour and not a corner, and one that would leave the box is reflected at its wall: the published tuner's steps grew
to three times the box, and its proposals were corners. Of several such steps it proposes the one that looks best after
all trials so far (`surface`), so that rejected trials also inform the search.
"""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import Final

from fairlead.tuning.surface import Expected, Point, SeenTrial, Surface
from fairlead.tuning.weights import Box, Weights

FIRST_STEP: Final = 0.2  # standard deviation, as a share of a weight's range
MOST_STEP: Final = 0.25
LEAST_STEP: Final = 0.05  # smaller steps change less than any measurement here can show
_GROWTH: Final = 1.5  # after a success; four failures undo it: one success in five keeps the step size
_OFFSPRING: Final = 8  # candidate steps per proposal
_REMEMBERED: Final = 100  # trials


class Search:
    """`incumbent` is the best known; `propose`, measure both, `learn` the gain, then `accept` or `reject`."""

    def __init__(self, start: Weights, box: Box, rng: Random) -> None:
        self.incumbent: Weights = {name: min(max(start[name], low), high) for name, (low, high) in box.items()}
        self.step = FIRST_STEP
        self._box = box
        self._rng = rng
        self._seen: deque[SeenTrial] = deque(maxlen=_REMEMBERED)
        self._first: Weights | None = None  # proposed before any step

    @property
    def converged(self) -> bool:
        """Further steps would be too small to distinguish."""
        return self.step <= LEAST_STEP

    def propose(self) -> Weights:
        first, self._first = self._first, None
        if first is not None:
            return first
        here, surface = self._point(self.incumbent), self._surface()
        points = [
            tuple(_moved(part, self.step * self._rng.gauss(0.0, 1.0)) for part in here) for _ in range(_OFFSPRING)
        ]
        return self._weights(surface.best(points, self._rng))

    def expected(self, candidate: Weights) -> Expected:
        """The gain of `candidate` over the incumbent, after the trials so far."""
        return self._surface().expected(self._point(candidate))

    def learn(self, candidate: Weights, gain: float, error: float) -> None:
        """`candidate` was measured against the incumbent: the gain of logarithms of times, and its standard error."""
        self._seen.append(SeenTrial(self._point(candidate), self._point(self.incumbent), gain, error))

    def accept(self, candidate: Weights) -> None:
        self.incumbent = candidate
        self.step = min(self.step * _GROWTH, MOST_STEP)

    def reject(self) -> None:
        self.step = max(self.step * _GROWTH**-0.25, LEAST_STEP)

    def restart(self, start: Weights) -> None:
        """Search again around `start`, with large steps, and try the last incumbent first.

        Earlier trials are dropped: the traffic may have changed.
        """
        self._first = self.incumbent if self.incumbent != start else None
        self.incumbent = start
        self.step = FIRST_STEP
        self._seen.clear()

    def _surface(self) -> Surface:
        return Surface(tuple(self._seen), self._point(self.incumbent))

    def _point(self, weights: Weights) -> Point:
        return tuple(math.log(weights[name] / low) / math.log(high / low) for name, (low, high) in self._box.items())

    def _weights(self, point: Point) -> Weights:
        bounds = zip(self._box.items(), point, strict=True)
        return {name: low * (high / low) ** part for (name, (low, high)), part in bounds}


def _moved(part: float, share: float) -> float:
    """`part` of a range moved by `share` of it, reflected at the ends."""
    point = (part + share) % 2.0
    return point if point <= 1.0 else 2.0 - point
