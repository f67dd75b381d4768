"""The little statistics that reports need: quantiles, spreads, slopes, and means with their intervals.

Policies that serve the same requests are compared repeat by repeat; intervals are Student's t over the repeats, which
are few: they are wide, and honest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

# Of Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom.
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

    def text(self, digits: int = 0) -> str:
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}..{self.high:,.{digits}f})"


class Slope(NamedTuple):
    """A least-squares slope, and the share of the variation that the line explains."""

    slope: float
    r_squared: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed; `values` must be sorted."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def slope_within(points: Iterable[tuple[Hashable, float, float]]) -> Slope:
    """One slope of y over x for points (group, x, y), where each group has its own height."""
    groups: dict[Hashable, list[tuple[float, float]]] = {}
    for group, x, y in points:
        groups.setdefault(group, []).append((x, y))
    centred = []
    for members in groups.values():
        mean_x, mean_y = (statistics.fmean(values) for values in zip(*members, strict=True))
        centred += [(x - mean_x, y - mean_y) for x, y in members]
    xx = sum(x * x for x, _ in centred)
    yy = sum(y * y for _, y in centred)
    xy = sum(x * y for x, y in centred)
    return Slope(xy / xx, xy * xy / (xx * yy))


class Estimate(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high


def estimate(values: Sequence[float]) -> Estimate:
    """The mean over repeats; of one repeat alone nothing is known beside its value."""
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
