"""The requests that reach a stage, as its GPUs feel them: how many, how much work on average, how much in the tail.

Every vector of thresholds sends another part of the sample to a stage. Simulating each would take hours, so the stage's
capacity is simulated for some parts and stretched for the others by the ratio of their work. The search then has the
part that it settles on simulated itself, so a stretched number never ends up in a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from fairlead.cascade.planner.capacity import StageCapacity, Strategy, best_use, fixed_use
from fairlead.cascade.planner.hardware import Cluster, Model, Shape, lane_parameters, shapes_that_fit
from fairlead.cascade.planner.lane import Lengths, simulate_curve
from fairlead.cascade.planner.routing import Flags, Profile
from fairlead.errors import UserError

Floats = NDArray[np.float64]

_SAME = 0.02  # parts whose work differs less than this are simulated once


@dataclass(frozen=True, slots=True)
class Work:
    """Milliseconds that one request takes of an idle engine: the mean of the part, and its 95th percentile."""

    mean_ms: float
    tail_ms: float

    def distance(self, other: Work) -> float:
        return max(abs(log(self.mean_ms / other.mean_ms)), abs(log(self.tail_ms / other.tail_ms)))


class Stage:
    """One model of the cascade: its latency tables for any part of the sample."""

    def __init__(
        self, model: Model, cluster: Cluster, profile: Profile, stage: int, fixed: Strategy | None = None
    ) -> None:
        self.model = model
        self._cluster = cluster
        self._fixed = fixed
        self._prompt_tokens, self._output_tokens = profile.prompt_tokens, profile.output_tokens[:, stage]
        self._request_ms = (
            self._prompt_tokens * model.prefill_ms_per_token
            + self._output_tokens * (model.step_overhead_ms + model.decode_ms_per_step)
            + 1e-6
        )
        longest_tokens = int((self._prompt_tokens + self._output_tokens).max())
        fitting = shapes_that_fit(model, cluster, longest_tokens)
        self._shapes = fitting if fixed is None else [shape for shape, _ in fixed]
        missing = [shape for shape in self._shapes if shape not in fitting]
        if missing or not self._shapes:
            what = f"replicas with {missing[0]}" if missing else f"{cluster.gpus} GPUs"
            raise UserError(
                f"{model.name}: {what} cannot hold the weights and a request of {longest_tokens:,} tokens; "
                "give more GPUs, higher degrees in tp_speedup or max_pp, or leave the model out"
            )
        self._simulated: list[tuple[Work, StageCapacity]] = []

    def work(self, part: Flags) -> Work:
        request_ms = self._request_ms[part]
        return Work(float(request_ms.mean()), float(np.percentile(request_ms, 95)))

    def knows(self, part: Flags) -> bool:
        """Whether this part's tables are simulated, not stretched from another's."""
        work = self.work(part)
        return any(work.distance(other) <= _SAME for other, _ in self._simulated)

    def simulate(self, part: Flags, told: Callable[[], None]) -> None:
        """Make sure that this part's tables are simulated; `told` is called for each shape."""
        if self.knows(part):
            return
        prompts, outputs = self._prompt_tokens[part], self._output_tokens[part]
        lengths = Lengths(tuple(prompts.astype(int).tolist()), tuple(np.maximum(outputs, 1).astype(int).tolist()))
        curves = {}
        for shape in self._shapes:
            curves[shape] = simulate_curve(lane_parameters(self.model, shape, self._cluster), lengths)
            told()
        gpus = self._cluster.gpus
        capacity = best_use(curves, gpus) if self._fixed is None else fixed_use(curves, self._fixed, gpus)
        self._simulated.append((self.work(part), capacity))

    def latency_ms(self, part: Flags, rate_per_ms: float) -> Floats:
        """p95 at `rate_per_ms` requests of this part, for each number of GPUs from 0 to the cluster's."""
        if not part.any():
            return np.zeros(self._cluster.gpus + 1)
        work = self.work(part)
        near, capacity = self._nearest(work)
        table = capacity.latency_ms(rate_per_ms * work.mean_ms / near.mean_ms)
        return table * (work.tail_ms / near.tail_ms)

    def strategy(self, part: Flags, rate_per_ms: float, gpus: int) -> Strategy:
        if self._fixed is not None:
            return self._fixed
        if not part.any():
            return ()
        work = self.work(part)
        near, capacity = self._nearest(work)
        return capacity.strategy(gpus, rate_per_ms * work.mean_ms / near.mean_ms)

    def carried(self, part: Flags, latency_ms: float) -> Mapping[Shape, float]:
        """Requests a millisecond that one replica of each shape answers with this p95: how requests are divided."""
        if not part.any():
            return {}
        work = self.work(part)
        near, capacity = self._nearest(work)
        return capacity.carried_within(latency_ms * near.tail_ms / work.tail_ms)

    def busy_gpu_ms(self, part: Flags, strategy: Strategy) -> float:
        """GPU time that a request of this part takes."""
        return self._nearest(self.work(part))[1].busy_gpu_ms(strategy)

    def _nearest(self, work: Work) -> tuple[Work, StageCapacity]:
        return min(self._simulated, key=lambda simulated: work.distance(simulated[0]))
