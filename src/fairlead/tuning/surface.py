"""The gain expected of untried weights after earlier trials: a parabola fitted to the gains seen.

It is fitted around the incumbent, where the next candidates lie. Distant trials count less, because the surface is a
parabola only locally, and old ones less, because traffic changes; before any trial, all gains are expected to be about
0. Points are in the box, each weight from 0 to 1 on the logarithmic scale; gains are differences of logarithms of
times. Bayesian linear regression: two weights make five unknowns, so a fit takes a fraction of a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

_PRIOR: Final = 0.5  # standard deviation of each coefficient: the effect that a weight may have over its range
_MISFIT: Final = 0.5  # standard deviation of the parabola's misfit at a distance of 1; it grows with the square
LEAST_ERROR: Final = 1e-3  # assumed for any measurement
_FADING: Final = 0.98  # factor on a trial's weight at each later one

Point = tuple[float, ...]


class Expected(NamedTuple):
    """An expected gain and its standard deviation."""

    gain: float
    error: float

    def with_seen(self, gain: float, error: float) -> Expected:
        """The expectation after a measurement of `gain` with that error."""
        known, seen = max(self.error, LEAST_ERROR) ** -2, max(error, LEAST_ERROR) ** -2
        return Expected((self.gain * known + gain * seen) / (known + seen), (known + seen) ** -0.5)


class SeenTrial(NamedTuple):
    """A trial: the gain of one point over another, and its standard error."""

    tried: Point
    against: Point
    gain: float
    error: float


class Surface:
    """The gains of points over `around`."""

    def __init__(self, seen: Sequence[SeenTrial], around: Point) -> None:
        self._around = around
        size = len(self._terms(around))
        precision = [[_PRIOR**-2 if row == column else 0.0 for column in range(size)] for row in range(size)]
        moment = [0.0] * size
        for age, trial in enumerate(reversed(seen)):
            terms = [a - b for a, b in zip(self._terms(trial.tried), self._terms(trial.against), strict=True)]
            distance = max(math.dist(trial.tried, around), math.dist(trial.against, around))
            counts = _FADING**age / (max(trial.error, LEAST_ERROR) ** 2 + (_MISFIT * distance**2) ** 2)
            for row in range(size):
                moment[row] += counts * terms[row] * trial.gain
                for column in range(row + 1):
                    precision[row][column] += counts * terms[row] * terms[column]
        self._root = _root(precision)
        self._half = _forward(self._root, moment)

    def expected(self, point: Point) -> Expected:
        """The expected gain of `point`."""
        half = _forward(self._root, self._terms(point))
        misfit = _MISFIT * math.dist(point, self._around) ** 2
        gain = _dot(half, self._half)
        return Expected(gain, math.sqrt(_dot(half, half) + misfit**2))

    def best(self, points: Sequence[Point], rng: Random) -> Point:
        """The best of `points` on a surface drawn at random from the likely ones, so that uncertainty is explored."""
        drawn = _backward(self._root, [each + rng.gauss(0.0, 1.0) for each in self._half])
        return max(points, key=lambda point: _dot(self._terms(point), drawn))

    def _terms(self, point: Point) -> list[float]:
        """The terms of the parabola: each step from `around`, their squares and products."""
        steps = [a - b for a, b in zip(point, self._around, strict=True)]
        return steps + [a * b for number, a in enumerate(steps) for b in steps[: number + 1]]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum([a * b for a, b in zip(left, right, strict=True)])


def _root(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """The lower triangle whose square is `matrix` (Cholesky)."""
    root: list[list[float]] = []
    for row in matrix:
        line: list[float] = []
        for column, above in enumerate(root):
            line.append((row[column] - _dot(line, above[:column])) / above[column])
        root.append([*line, math.sqrt(row[len(line)] - _dot(line, line))])
    return root


def _forward(root: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """x, where root x = values."""
    found: list[float] = []
    for line, value in zip(root, values, strict=True):
        found.append((value - _dot(line[:-1], found)) / line[-1])
    return found


def _backward(root: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """x, where the transpose of root times x = values."""
    found = list(values)
    for row in reversed(range(len(found))):
        found[row] /= root[row][row]
        for above in range(row):
            found[above] -= root[row][above] * found[row]
    return found
