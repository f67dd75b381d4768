"""Statistics of repeated measurements for reports: spreads, slopes, and means with their intervals.

Policies that serve the same requests are compared repeat by repeat; intervals are Student's t over the repeats, which
are few, so intervals are wide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from fairlead.statistics import least_squares

# Quantiles of Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom.
_T: Final = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
)  # fmt: skip; beyond, 1.96 + 2.5 / freedom is nearer than 0.002


class Spread(NamedTuple):
    """The median of several runs, and the least and the most of them."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 0, sign: Literal["-", "+"] = "-") -> str:
        """`sign` is "+" for differences, which tell theirs in any case."""
        median, low, high = (f"{value:{sign},.{digits}f}" for value in self)
        return f"{median} ({low}..{high})"


class Slope(NamedTuple):
    """A least-squares slope, and the share of the variation that the line explains."""

    slope: float
    r_squared: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def slope_within(points: Iterable[tuple[Hashable, float, float]]) -> Slope:
    """One slope of y over x for points (group, x, y), where each group has its own offset."""
    groups: dict[Hashable, list[tuple[float, float]]] = {}
    for group, x, y in points:
        groups.setdefault(group, []).append((x, y))
    xs, ys = [], []
    for members in groups.values():
        mean_x, mean_y = (statistics.fmean(values) for values in zip(*members, strict=True))
        xs += [x - mean_x for x, _ in members]
        ys += [y - mean_y for _, y in members]
    (slope,) = least_squares([xs], ys)
    return Slope(slope, slope * slope * sum(x * x for x in xs) / sum(y * y for y in ys))


class Estimate(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high

    def text(self, digits: int, sign: Literal["-", "+"] = "-") -> str:
        """With its interval; `sign` as in `Spread.text`."""
        mean, low, high = (f"{value:{sign},.{digits}f}" for value in self)
        return f"{mean} ({low} to {high})"

    def plus_minus(self, digits: int) -> str:
        """With half its interval, where that is the same on both sides."""
        return f"{self.mean:,.{digits}f} ± {self.high - self.mean:,.{digits}f}"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean over repeats; a single repeat gives no interval."""
    mean = statistics.fmean(values)
    freedom = len(values) - 1
    if not freedom:
        return Estimate(mean, -math.inf, math.inf)
    t = _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.5 / freedom
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Ours less theirs, repeat by repeat."""
    return estimate([mine - other for mine, other in zip(ours, theirs, strict=True)])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Ours over theirs, repeat by repeat; the mean is the geometric one, so that twice and half weigh the same."""
    logs = estimate([math.log(mine / other) for mine, other in zip(ours, theirs, strict=True)])
    return Estimate(*map(math.exp, logs))
