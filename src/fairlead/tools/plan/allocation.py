"""How many GPUs each model gets: the least possible maximum of the stages' latencies, by dynamic programming.

`latency_ms[i][f]` is what model `i` reaches with at most `f` GPUs (infinite: it does not fit), so it never grows with
`f`. Among allocations with the same maximum, the one with the least latency weighted by the share of requests wins, and
then the one with the fewest GPUs. Source: Cascadia section 3.2, which solves an integer program; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Allocation:
    gpus: tuple[int, ...]
    latency_ms: float  # the greatest of the stages'


def least_maximum_ms(latency_ms: Sequence[Floats]) -> float:
    """The least maximum latency within the budget, which is the tables' last index; infinite: the models do not fit."""
    best = latency_ms[0]
    for table in latency_ms[1:]:
        best = np.maximum(_splits(best), table).min(axis=1)
    return float(best[-1])


def by_dynamic_program(latency_ms: Sequence[Floats], shares: Sequence[float]) -> Allocation | None:
    """The best allocation; None where the models do not fit."""
    limit_ms = least_maximum_ms(latency_ms)
    if not np.isfinite(limit_ms):
        return None
    costs = [
        np.where(table <= limit_ms, share * np.minimum(table, limit_ms), np.inf)
        for table, share in zip(latency_ms, shares, strict=True)
    ]
    return allocated(_least_total(costs), latency_ms)


def by_least_sum(latency_ms: Sequence[Floats], weights: Sequence[float]) -> Allocation | None:
    """The allocation with the least weighted sum of latencies; None where the models do not fit."""
    costs = [
        np.where(np.isfinite(table), weight * np.where(np.isfinite(table), table, 0.0), np.inf)
        for table, weight in zip(latency_ms, weights, strict=True)
    ]
    gpus = _least_total(costs)
    found = allocated(gpus, latency_ms)
    return found if np.isfinite(found.latency_ms) else None


def _least_total(costs: Sequence[Floats]) -> list[int]:
    """How many GPUs each model gets so that the costs add up to the least, with the fewest GPUs for it."""
    best, choices = costs[0], []
    for cost in costs[1:]:
        totals = _splits(best) + cost
        choices.append(totals.argmin(axis=1))
        best = totals.min(axis=1)
    budget = int(np.argmax(best <= best[-1] * (1 + 1e-12)))
    gpus = []
    for choice in reversed(choices):
        gpus.append(int(choice[budget]))
        budget -= gpus[-1]
    gpus.append(budget)
    gpus.reverse()
    return gpus


def _splits(best: Floats) -> Floats:
    """Row f, column k: what the models so far reach with f - k GPUs."""
    rest = np.subtract.outer(np.arange(len(best)), np.arange(len(best)))
    return np.where(rest >= 0, best[np.maximum(rest, 0)], np.inf)


def allocated(gpus: Sequence[int], latency_ms: Sequence[Floats]) -> Allocation:
    """What this division of the GPUs reaches."""
    return Allocation(tuple(gpus), max(float(table[count]) for table, count in zip(latency_ms, gpus, strict=True)))
