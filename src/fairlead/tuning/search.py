"""The search: a (1+1) evolution strategy over the logarithms of weights, with the 1/5 rule, inside a box.

It proposes and is told whether the proposal was better; how that is found out is not its business. Steps are shares of
each weight's range on the logarithmic scale and are at most a quarter of it, so a proposal is a neighbour and not a
corner, and one that would leave the box is reflected at its wall: the published tuner's steps grew to three times the
box, and its proposals were corners.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

from fairlead.core.evolution import Box, Weights

FIRST_STEP: Final = 0.2  # of a weight's range, as a standard deviation
MOST_STEP: Final = 0.25
LEAST_STEP: Final = 0.02  # smaller ones change less than any measurement here can tell
_GROWTH: Final = 1.5  # after a success; four failures undo it, so one success in five keeps the step


class Search:
    """`incumbent` is the best known; `propose`, measure both, then `accept` or `reject`."""

    def __init__(self, start: Weights, box: Box, rng: Random) -> None:
        self.incumbent: Weights = {name: min(max(start[name], low), high) for name, (low, high) in box.items()}
        self.step = FIRST_STEP
        self._box = box
        self._rng = rng

    @property
    def converged(self) -> bool:
        """Further steps would be too small to tell apart."""
        return self.step <= LEAST_STEP

    def propose(self) -> Weights:
        return {
            name: _moved(self.incumbent[name], bounds, self.step * self._rng.gauss(0.0, 1.0))
            for name, bounds in self._box.items()
        }

    def accept(self, candidate: Weights) -> None:
        self.incumbent = candidate
        self.step = min(self.step * _GROWTH, MOST_STEP)

    def reject(self) -> None:
        self.step = max(self.step * _GROWTH**-0.25, LEAST_STEP)

    def restart(self, start: Weights) -> None:
        """Search again around `start`, with large steps."""
        self.incumbent = start
        self.step = FIRST_STEP


def _moved(value: float, bounds: tuple[float, float], share: float) -> float:
    """`value` moved by `share` of its range on the logarithmic scale, reflected at the bounds."""
    low, high = bounds
    width = math.log(high / low)
    place = (math.log(value / low) / width + share) % 2.0
    return low * math.exp(width * (place if place <= 1.0 else 2.0 - place))
