"""A plan: thresholds, and for each model its share of the requests, its GPUs and the replicas on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from fairlead.tools.plan.capacity import Strategy, gpus_of
from fairlead.tools.plan.prediction import Latency


@dataclass(frozen=True, slots=True)
class StagePlan:
    model: str
    share: float  # share of all requests that this model answers
    gpus: int
    strategy: Strategy
    latency: Latency  # predicted, judge included


@dataclass(frozen=True, slots=True)
class Alternative:
    """The result of another subset of the models, planned for the same aim and simulated the same way."""

    models: tuple[str, ...]
    p95_ms: float = inf  # from arrival to accepted answer
    quality: float = 0.0
    gpu_ms: float = 0.0
    fault: str = ""  # why there is no such plan; then the numbers are meaningless


@dataclass(frozen=True, slots=True)
class Plan:
    """`stages` are the models to serve, in order, and `thresholds` stand between them."""

    objective: str  # what was asked for, in words
    thresholds: tuple[float, ...]
    stages: tuple[StagePlan, ...]
    end_to_end: Latency
    quality: float
    quality_error: float  # standard error of `quality`: the profile is a sample
    rate_per_s: float
    gpus: int  # GPUs of the cluster
    gpu_ms: float  # busy GPU time per request
    models: tuple[str, ...]  # models to choose from, the smallest first
    utopia: float  # quality of the last of them alone
    nadir: float  # quality of the first of them alone
    alternatives: tuple[Alternative, ...]  # the quickest first
    inputs: str  # hash of all that the plan was made from


def faults(thresholds: Sequence[float], stages: Sequence[StagePlan], gpus: int) -> list[str]:
    """The reasons why these are not a valid plan for `gpus` GPUs; none for a valid one."""
    found = []
    if len(thresholds) != len(stages) - 1:
        found.append(f"{len(stages)} models need {len(stages) - 1} thresholds, there are {len(thresholds)}")
    found += [f"threshold {value:g} is not within 0 to 100" for value in thresholds if not 0 <= value <= 100]
    if stages and stages[0].share != 1:
        found.append(f"{stages[0].model} is first and must get every request, not {stages[0].share:.0%}")
    for before, stage in pairwise(stages):
        if stage.share > before.share:
            found.append(f"{stage.model} gets {stage.share:.0%} of the requests, {before.model} before it fewer")
    for stage in stages:
        if gpus_of(stage.strategy) != stage.gpus:
            found.append(f"{stage.model} is given {stage.gpus} GPUs, its replicas need {gpus_of(stage.strategy)}")
        if stage.share > 0 and not stage.strategy:
            found.append(f"{stage.model} gets requests and has no replica")
    if (used := sum(stage.gpus for stage in stages)) > gpus:
        found.append(f"the models use {used} GPUs of {gpus}")
    return found
