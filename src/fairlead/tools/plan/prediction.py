"""What a plan will do: the whole cascade simulated, each stage fed by the requests that the previous stage passed on.

The search looks at stages one by one; here a request's times add up, so end-to-end percentiles come from here.
Replicas get requests in smooth weighted turns, as Cascadia's simulator does in equal ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.statistics import quantile
from fairlead.tools.plan.capacity import Strategy
from fairlead.tools.plan.hardware import Cluster, Model, Shape, pipeline_slot_parameters
from fairlead.tools.plan.replica_load import arrivals_ms, latencies_ms
from fairlead.tools.plan.routing import Profile, Routed

Floats = NDArray[np.float64]

REQUESTS = 4000
_WARM_UP = 0.1


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of requests in milliseconds; zeros if there are none."""

    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Prediction:
    stages: tuple[Latency, ...]  # judge included, where one follows
    end_to_end: Latency


@dataclass(frozen=True, slots=True)
class Deployed:
    """A model's replicas and how its requests are divided among the shapes."""

    model: Model
    strategy: Strategy
    carried: Mapping[Shape, float]  # requests a millisecond that one replica of each shape takes


def predict(
    profile: Profile,
    routed: Routed,
    deployed: Sequence[Deployed],
    cluster: Cluster,
    rate_per_ms: float,
    judge_ms: float,
    count: int = REQUESTS,
) -> Prediction:
    rng = np.random.default_rng(0)
    rows = np.concatenate(
        [rng.permutation(len(profile.prompt_tokens)) for _ in range(-(-count // len(profile.prompt_tokens)))]
    )
    rows = rows[:count]
    start_ms = arrivals_ms(rate_per_ms, len(rows))
    now_ms = start_ms.copy()  # when each request reaches the stage
    warm = np.arange(len(rows)) >= _WARM_UP * len(rows)
    stages = []
    for index, stage in enumerate(deployed):
        here = np.flatnonzero(routed.reached[index][rows])
        if len(here):
            here = here[np.argsort(now_ms[here], kind="stable")]
            prompts = profile.prompt_tokens[rows[here]].astype(int).tolist()
            outputs = np.maximum(profile.output_tokens[rows[here], index], 1).astype(int).tolist()
            requests = list(zip(prompts, outputs, strict=True))
            took_ms = _stage_ms(stage, cluster, requests, now_ms[here])
            if index < len(deployed) - 1:
                took_ms = took_ms + judge_ms
            now_ms[here] += took_ms
            stages.append(_latency(took_ms[warm[here]]))
        else:
            stages.append(_latency(np.zeros(0)))
    return Prediction(tuple(stages), _latency((now_ms - start_ms)[warm]))


def _stage_ms(stage: Deployed, cluster: Cluster, requests: Sequence[tuple[int, int]], at_ms: Floats) -> Floats:
    slots = [(shape, stage.carried[shape]) for shape, count in stage.strategy for _ in range(count * shape.pp)]
    weights = np.array([carried for _, carried in slots])
    chosen = _turns(weights / weights.sum(), len(requests))
    took_ms = np.zeros(len(requests))
    for slot, (shape, _) in enumerate(slots):
        mine = np.flatnonzero(chosen == slot)
        own = [requests[index] for index in mine.tolist()]
        took_ms[mine] = latencies_ms(pipeline_slot_parameters(stage.model, shape, cluster), own, at_ms[mine])
    return took_ms


def _turns(shares: Floats, count: int) -> NDArray[np.int64]:
    """Smooth weighted round robin: each slot's turns are spread evenly."""
    credit = np.zeros(len(shares))
    turns = np.zeros(count, dtype=np.int64)
    for index in range(count):
        credit += shares
        turns[index] = int(credit.argmax())
        credit[turns[index]] -= 1
    return turns


def _latency(took_ms: Floats) -> Latency:
    if not len(took_ms):
        return Latency(0.0, 0.0, 0.0, 0.0)
    return Latency(float(took_ms.mean()), *(quantile(took_ms.tolist(), share) for share in (0.5, 0.95, 0.99)))
