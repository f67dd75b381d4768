"""The load of a stage: how many requests reach it, and their work on average and in the tail.

Every vector of thresholds sends another part of the sample to a stage. Simulating each would take hours, so the stage's
capacity is simulated for some parts and scaled for the others by the ratio of their work. The search then simulates the
part it chooses, so no scaled number ends up in a plan. Shapes beaten by several smaller
replicas within every latency, for the first part, are not simulated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import UserError
from fairlead.statistics import quantile
from fairlead.tools.plan.capacity import StageCapacity, Strategy, best_use, fixed_use, undominated
from fairlead.tools.plan.hardware import Cluster, Model, Shape, pipeline_slot_parameters, shapes_that_fit
from fairlead.tools.plan.replica_load import Lengths, simulate_curve
from fairlead.tools.plan.routing import Flags, Profile

Floats = NDArray[np.float64]

_SAME = 0.04  # parts whose work differs less than this are simulated once


@dataclass(frozen=True, slots=True)
class Work:
    """Milliseconds that one request takes on an idle engine: the mean of the part, and its 95th percentile."""

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
        self._works: dict[bytes, Work] = {}  # by part: most vectors of thresholds share their first stages' parts

    def work(self, part: Flags) -> Work:
        key = part.tobytes()
        if (work := self._works.get(key)) is None:
            request_ms = self._request_ms[part]
            work = self._works[key] = Work(float(request_ms.mean()), quantile(request_ms.tolist(), 0.95))
        return work

    def knows(self, part: Flags) -> bool:
        """Whether this part's tables are simulated and not scaled from another's."""
        work = self.work(part)
        return any(work.distance(other) <= _SAME for other, _ in self._simulated)

    def simulate(self, part: Flags, progressed: Callable[[], None]) -> None:
        """Make sure that this part's tables are simulated; `progressed` is called for each shape."""
        if self.knows(part):
            return
        prompts, outputs = self._prompt_tokens[part], self._output_tokens[part]
        lengths = Lengths(tuple(prompts.astype(int).tolist()), tuple(np.maximum(outputs, 1).astype(int).tolist()))
        curves = {}
        for shape in self._shapes:
            curves[shape] = simulate_curve(pipeline_slot_parameters(self.model, shape, self._cluster), lengths)
            progressed()
        gpus = self._cluster.gpus
        capacity = best_use(curves, gpus) if self._fixed is None else fixed_use(curves, self._fixed, gpus)
        self._simulated.append((self.work(part), capacity))
        if self._fixed is None:
            self._shapes = undominated(capacity)

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
