"""From settings, a profile and an aim to a plan: the whole planner in one call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from fairlead.cascade.planner.capacity import gpus_of
from fairlead.cascade.planner.plan import Plan, StagePlan
from fairlead.cascade.planner.prediction import Deployed, predict
from fairlead.cascade.planner.routing import Profile, Routed
from fairlead.cascade.planner.search import Aim, Searched, search
from fairlead.cascade.planner.settings import CascadeSettings
from fairlead.cascade.planner.workload import Stage
from fairlead.errors import UserError

_MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True)
class Made:
    plan: Plan
    searched: Searched


def make_plan(
    settings: CascadeSettings,
    profile: Profile,
    aim: Aim,
    *,
    fixed_deployment: bool = False,
    told: Callable[[], None] = lambda: None,
) -> Made:
    """Raises UserError where the aim cannot be reached; `told` is called for each replica shape simulated."""
    cluster = settings.gpus.cluster()
    stages = []
    for index, model in enumerate(settings.models):
        if fixed_deployment and not model.replicas:
            raise UserError(f"models[{index}].replicas: with --fixed-deployment, say which replicas {model.name} has")
        fixed = model.strategy() if fixed_deployment else None
        stages.append(Stage(model.model(), cluster, profile, index, fixed))
    if fixed_deployment and (used := sum(gpus_of(model.strategy()) for model in settings.models)) > cluster.gpus:
        raise UserError(f"gpus.count: the replicas use {used} GPUs of {cluster.gpus}; correct one of the two")
    rate_per_ms = settings.rate_per_s / _MS_PER_S
    searched = search(stages, profile, aim, rate_per_ms, settings.judge_ms, told)
    best = searched.best
    deployed = []
    for index, (stage, part, strategy) in enumerate(zip(stages, best.routed.reached, best.strategies, strict=True)):
        judge_ms = settings.judge_ms if index < len(stages) - 1 else 0.0
        carried = stage.carried(part, best.stage_ms[index] - judge_ms)
        deployed.append(Deployed(stage.model, strategy, carried))
    prediction = predict(profile, best.routed, deployed, cluster, rate_per_ms, settings.judge_ms)
    plan = Plan(
        thresholds=best.routed.thresholds,
        stages=tuple(
            StagePlan(model.name, share, gpus_of(strategy), strategy, latency)
            for model, share, strategy, latency in zip(
                settings.models, best.routed.shares, best.strategies, prediction.stages, strict=True
            )
        ),
        end_to_end=prediction.end_to_end,
        quality=best.routed.quality,
        quality_error=_standard_error(profile, best.routed),
        rate_per_s=settings.rate_per_s,
        gpus=cluster.gpus,
        gpu_ms=best.gpu_ms,
        utopia=searched.utopia,
        nadir=searched.nadir,
        objective=_in_words(aim, fixed_deployment),
        inputs=_hash(settings, profile, aim, fixed_deployment),
    )
    return Made(plan, searched)


def _standard_error(profile: Profile, routed: Routed) -> float:
    accepted = np.zeros(len(profile.prompt_tokens))
    for stage, part in enumerate(routed.reached):
        accepted[part] = profile.quality[part, stage]
    return float(accepted.std(ddof=1) / np.sqrt(len(accepted)))


def _in_words(aim: Aim, fixed_deployment: bool) -> str:
    where = " on the replicas that are there" if fixed_deployment else ""
    if aim.most_latency_ms is not None:
        return f"the best quality with a p95 of at most {aim.most_latency_ms:g} ms in every stage{where}"
    return f"the least p95 of the slowest stage with a quality of at least {aim.least_quality:g}{where}"


def _hash(settings: CascadeSettings, profile: Profile, aim: Aim, fixed_deployment: bool) -> str:
    """The same inputs, the same hash: a plan can be told to be out of date."""
    digest = hashlib.sha256(settings.model_dump_json().encode())
    for table in (profile.prompt_tokens, profile.output_tokens, profile.score, profile.quality):
        digest.update(np.ascontiguousarray(table).tobytes())
    digest.update(msgspec.json.encode([*profile.models, aim, fixed_deployment]))
    return f"sha256:{digest.hexdigest()}"
