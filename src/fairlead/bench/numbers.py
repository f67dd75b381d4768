"""The little statistics that the report needs: quantiles, spreads and slopes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple


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
