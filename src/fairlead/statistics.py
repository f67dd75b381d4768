"""The statistics that what serves and what studies have in common: quantiles by the nearest rank, and least squares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import mul
from typing import Final

_NOTHING: Final = 1e-12  # of a diagonal element: what elimination leaves of it is rounding


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed: always one that was seen.

    Raises IndexError where there are none.
    """
    ordered = sorted(values)
    return ordered[max(0, len(ordered) - 1 - above_rank(len(ordered), share))]


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The smallest of `values` up to which at least `share` of the weight lies; without any weight the last of them.

    Raises IndexError where there are none.
    """
    ordered = sorted(zip(values, weights, strict=True))
    left = share * sum(weights)
    for value, weight in ordered:
        left -= weight
        if left <= 0 and weight > 0:
            return value
    return ordered[-1][0]


def above_rank(count: int, share: float) -> int:
    """How many of `count` values lie above their quantile of `share`."""
    return count - math.ceil(share * count)


def least_squares(
    columns: Sequence[Sequence[float]],
    values: Sequence[float],
    weights: Sequence[float] | None = None,
    assumed: Sequence[tuple[float, float]] = (),
) -> list[float]:
    """The factors with which the sum of `columns` comes nearest to `values`; 0 for a column that depends on the others.

    `assumed` holds a weight and a value for each factor (ridge regression), which a factor keeps if the rows do not
    determine it.
    """
    weighted = columns if weights is None else [list(map(mul, weights, column)) for column in columns]
    matrix = [[sum(map(mul, one, other)) for other in columns] for one in weighted]
    vector = [sum(map(mul, column, values)) for column in weighted]
    for i, (weight, value) in enumerate(assumed):
        matrix[i][i] += weight
        vector[i] += weight * value
    return solve(matrix, vector)


def line_through(points: Sequence[tuple[float, float]], weights: Sequence[float] | None = None) -> tuple[float, float]:
    """Intercept and slope of the line through `points` (x, y); flat where all have one x."""
    weights = weights or [1.0] * len(points)
    total = sum(weights)
    xs, ys = zip(*points, strict=True)
    mean_x, mean_y = (sum(map(mul, weights, column)) / total for column in (xs, ys))
    (slope,) = least_squares([[x - mean_x for x in xs]], [y - mean_y for y in ys], weights)
    return mean_y - slope * mean_x, slope


def solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Symmetric equations without negative eigenvalues, by elimination, in place."""
    count = len(vector)
    least = [_NOTHING * matrix[i][i] for i in range(count)]
    for i in range(count):
        if matrix[i][i] <= least[i]:
            continue
        for j in range(i + 1, count):
            factor = matrix[j][i] / matrix[i][i]
            vector[j] -= factor * vector[i]
            for k in range(i, count):
                matrix[j][k] -= factor * matrix[i][k]
    found = [0.0] * count
    for i in reversed(range(count)):
        if matrix[i][i] > least[i]:
            rest = vector[i] - sum(matrix[i][j] * found[j] for j in range(i + 1, count))
            found[i] = rest / matrix[i][i]
    return found
