"""What a number of GPUs can do for one stage: the best set of replicas for each latency limit, of any shapes.

A replica carries as many requests as its p95 allows, and the stage's p95 is within a limit when each replica's is. So
for a limit the best use of f GPUs is an unbounded knapsack: shapes weigh their GPUs and are worth the rate they carry.
The knapsack is solved for all limits at once, and the rate of a stage then reads its latency for each f from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.tools.plan.hardware import Shape
from fairlead.tools.plan.replica_load import Curve

Floats = NDArray[np.float64]
Strategy = tuple[tuple[Shape, int], ...]  # shapes and how many replicas of each

_CLEARLY = 1.03
_STEP = 1.01  # between two latency limits


def gpus_of(strategy: Strategy) -> int:
    return sum(shape.gpus * count for shape, count in strategy)


@dataclass(frozen=True, slots=True)
class StageCapacity:
    """`rate_per_ms[f, l]`: the most requests that f GPUs answer with a p95 within `limits_ms[l]`."""

    curves: Mapping[Shape, Curve]
    limits_ms: Floats
    carried: Floats  # row: shape in order of `curves`; what one replica carries within each limit
    rate_per_ms: Floats

    def latency_ms(self, rate_per_ms: float) -> Floats:
        """The least limit met by at most f GPUs at this rate, for f from 0 on; infinite if none is met."""
        enough = self.rate_per_ms >= rate_per_ms
        first = enough.argmax(axis=1)
        return np.where(enough[:, -1], self.limits_ms[first], np.inf)

    def strategy(self, gpus: int, rate_per_ms: float) -> Strategy:
        """The fewest replicas that meet `latency_ms(rate)[gpus]`."""
        limit = int((self.rate_per_ms[gpus] >= rate_per_ms).argmax())
        carried = dict(zip(self.curves, self.carried[:, limit].tolist(), strict=True))
        rates = self.rate_per_ms[:, limit]
        left = int((rates >= rate_per_ms).argmax())
        counts: dict[Shape, int] = {}
        while left > 0 and rates[left] > 0:
            if rates[left - 1] == rates[left]:
                left -= 1
                continue
            shape = next(
                shape
                for shape, rate in carried.items()
                if shape.gpus <= left and rates[left - shape.gpus] + rate == rates[left]
            )
            counts[shape] = counts.get(shape, 0) + 1
            left -= shape.gpus
        return tuple(sorted(counts.items(), reverse=True))

    def carried_within(self, limit_ms: float) -> dict[Shape, float]:
        """The rate that one replica of each shape carries within the limit that is nearest to `limit_ms`."""
        nearest = int(np.abs(self.limits_ms - limit_ms).argmin())
        return dict(zip(self.curves, self.carried[:, nearest].tolist(), strict=True))

    def busy_gpu_ms(self, strategy: Strategy) -> float:
        """GPU time per request on replicas that are never idle: a plan's cost apart from its latency."""
        most = sum(self.curves[shape].most_per_ms * shape.pp * count for shape, count in strategy)
        return gpus_of(strategy) / most if most else 0.0


def undominated(capacity: StageCapacity) -> list[Shape]:
    """The shapes that may be of use: no whole number of smaller replicas carries clearly more within every limit."""
    shapes = list(capacity.curves)
    kept = []
    for shape, carried in zip(shapes, capacity.carried, strict=True):
        beaten = any(
            other.gpus <= shape.gpus
            and shape.gpus % other.gpus == 0
            and other != shape
            and bool(np.all(shape.gpus // other.gpus * rate >= _CLEARLY * carried))
            for other, rate in zip(shapes, capacity.carried, strict=True)
        )
        if not beaten:
            kept.append(shape)
    return kept or shapes


def best_use(curves: Mapping[Shape, Curve], gpus: int) -> StageCapacity:
    """The best use of up to `gpus` GPUs, with any strategy."""
    limits_ms, carried = _carried(curves)
    rates = np.zeros((gpus + 1, len(limits_ms)))
    for count in range(1, gpus + 1):
        rates[count] = rates[count - 1]
        for shape, rate in zip(curves, carried, strict=True):
            if shape.gpus <= count:
                np.maximum(rates[count], rates[count - shape.gpus] + rate, out=rates[count])
    return StageCapacity(curves, limits_ms, carried, rates)


def fixed_use(curves: Mapping[Shape, Curve], strategy: Strategy, gpus: int) -> StageCapacity:
    """The use of the existing replicas; further GPUs change nothing."""
    limits_ms, carried = _carried(curves)
    replicas = [dict(strategy).get(shape, 0) for shape in curves]
    rates = np.zeros((gpus + 1, len(limits_ms)))
    rates[gpus_of(strategy) :] = np.array(replicas) @ carried
    return StageCapacity(curves, limits_ms, carried, rates)


def _carried(curves: Mapping[Shape, Curve]) -> tuple[Floats, Floats]:
    fastest_ms = min(curve.p95_ms[0] for curve in curves.values())
    slowest_ms = max(curve.p95_ms[-1] for curve in curves.values())
    steps = int(np.ceil(np.log(slowest_ms / fastest_ms) / np.log(_STEP))) + 1
    limits_ms = fastest_ms * _STEP ** np.arange(steps)
    return limits_ms, np.array([curve.rate_within(limits_ms) * shape.pp for shape, curve in curves.items()])
