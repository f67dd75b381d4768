"""From settings, a profile and an aim to a plan: the whole planner in one call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from fairlead.errors import UserError
from fairlead.tools.plan.capacity import gpus_of
from fairlead.tools.plan.plan import Alternative, Plan, StagePlan
from fairlead.tools.plan.prediction import REQUESTS, Deployed, Prediction, predict
from fairlead.tools.plan.refine import least_latency, most_quality, with_best
from fairlead.tools.plan.routing import Profile, Routed, alone
from fairlead.tools.plan.search import Aim, Demand, ScoredPlan, SearchResult, UnreachableError, search
from fairlead.tools.plan.settings import CascadeSettings
from fairlead.tools.plan.subsets import Models, Planned, Tried, try_subsets
from fairlead.tools.plan.workload import Stage

Floats = NDArray[np.float64]

_MS_PER_S = 1000.0
_SCREENED_REQUESTS = 1600  # simulated of each plan of a short list
_HOPELESS = 1.3  # times the p95 of another subset: no other plan of the short list makes up for that


@dataclass(frozen=True, slots=True)
class Made:
    plan: Plan
    searched: SearchResult  # for the models that the plan uses
    latency_ms: Floats  # for every vector of thresholds of every subset tried, with its best deployment
    quality: Floats


def make_plan(
    settings: CascadeSettings,
    profile: Profile,
    aim: Aim,
    *,
    fixed_deployment: bool = False,
    whole: bool = False,
    progressed: Callable[[], None] = lambda: None,
) -> Made:
    """Raises UserError where the aim cannot be reached; `progressed` is called for each replica shape simulated.

    `whole` plans for all models of the settings; otherwise models may be left out if that is better.
    """
    planner = _Planner(settings, profile, aim, fixed_deployment, progressed)
    everything: Models = tuple(range(len(settings.models)))
    tried = {everything: planner.plan(everything)} if whole else try_subsets(len(everything), aim, planner.plan)
    planned = {models: each for models, each in tried.items() if isinstance(each, Planned)}
    if not planned:
        raise next(each for each in tried.values() if isinstance(each, UnreachableError))
    chosen = min(planned, key=lambda models: planned[models].worth(aim))
    best, prediction = planned[chosen].searched.best, planned[chosen].prediction
    names = [settings.models[index].name for index in chosen]
    stages = tuple(
        StagePlan(name, share, gpus_of(strategy), strategy, latency)
        for name, share, strategy, latency in zip(
            names, best.routed.shares, best.strategies, prediction.stages, strict=True
        )
        if share or whole
    )
    plan = Plan(
        thresholds=best.routed.thresholds[: len(stages) - 1],
        stages=stages,
        end_to_end=prediction.end_to_end,
        quality=best.routed.quality,
        quality_error=_standard_error(profile.of(chosen), best.routed),
        rate_per_s=settings.rate_per_s,
        gpus=settings.gpus.count,
        gpu_ms=best.gpu_ms,
        models=profile.models,
        utopia=planner.demand.utopia,
        nadir=planner.demand.nadir,
        alternatives=() if whole else _alternatives(tried, profile, tuple(stage.model for stage in stages)),
        objective=_in_words(aim, fixed_deployment),
        inputs=_hash(settings, profile, aim, fixed_deployment, whole),
    )
    every = [each.searched for each in planned.values()]
    return Made(
        plan,
        planned[chosen].searched,
        np.concatenate([each.latency_ms for each in every]),
        np.concatenate([each.quality for each in every]),
    )


class _Planner:
    """Plans subsets of one cascade's models. A model's simulations for one subset are reused for the others."""

    def __init__(
        self,
        settings: CascadeSettings,
        profile: Profile,
        aim: Aim,
        fixed_deployment: bool,
        progressed: Callable[[], None],
    ) -> None:
        utopia, nadir = alone(profile, -1), alone(profile, 0)
        if utopia <= nadir:
            raise UserError(
                f"{profile.models[-1]} scores {utopia:.4g} and {profile.models[0]} {nadir:.4g} on this profile: "
                "a cascade needs its models in order of quality; change their order, or serve the first alone"
            )
        self.demand = Demand(aim, settings.rate_per_s / _MS_PER_S, settings.judge_ms, utopia, nadir)
        self._least_ms = float("inf")  # p95 of the fastest plan so far that meets the aim
        self._profile = profile
        self._cluster = settings.gpus.cluster()
        self._progressed = progressed
        self._stages = []
        for index, model in enumerate(settings.models):
            if fixed_deployment and not model.replicas:
                raise UserError(f"models[{index}].replicas: with --fixed-deployment, list the replicas of {model.name}")
            fixed = model.strategy() if fixed_deployment else None
            self._stages.append(Stage(model.model(), self._cluster, profile, index, fixed))
        used = sum(gpus_of(model.strategy()) for model in settings.models)
        if fixed_deployment and used > self._cluster.gpus:
            raise UserError(f"gpus.count: the replicas use {used} GPUs of {self._cluster.gpus}; correct one of the two")

    def plan(self, models: Models) -> Planned | UnreachableError:
        stages, profile = [self._stages[index] for index in models], self._profile.of(models)
        try:
            searched = search(stages, profile, self.demand, self._progressed)
        except UnreachableError as error:
            return error

        def simulate(plan: ScoredPlan, requests: int = _SCREENED_REQUESTS) -> Prediction:
            return self._simulated(stages, profile, plan, requests)

        most_latency_ms = self.demand.aim.most_latency_ms
        if most_latency_ms is None:
            refined = least_latency(searched, simulate, _HOPELESS * self._least_ms)
        else:
            within = most_quality(searched, most_latency_ms, lambda plan: simulate(plan, REQUESTS))
            if isinstance(within, float):
                return UnreachableError(
                    f"no plan is faster than {within:,.0f} ms from a request to its answer",
                    "allow a higher latency, or give more GPUs",
                )
            refined = within
        planned = Planned(with_best(searched, refined), simulate(refined.plan, REQUESTS))
        if refined.plan.routed.quality >= (self.demand.aim.least_quality or 0.0):
            self._least_ms = min(self._least_ms, planned.prediction.end_to_end.p95_ms)
        return planned

    def _simulated(self, stages: Sequence[Stage], profile: Profile, plan: ScoredPlan, requests: int) -> Prediction:
        deployed, judge_ms = [], self.demand.judge_ms
        for index, (stage, part, strategy) in enumerate(zip(stages, plan.routed.reached, plan.strategies, strict=True)):
            judged_ms = judge_ms if index < len(stages) - 1 else 0.0
            deployed.append(Deployed(stage.model, strategy, stage.carried(part, plan.stage_ms[index] - judged_ms)))
        return predict(profile, plan.routed, deployed, self._cluster, self.demand.rate_per_ms, judge_ms, requests)


def _alternatives(tried: Tried, profile: Profile, chosen: tuple[str, ...]) -> tuple[Alternative, ...]:
    """The results of the other subsets, the fastest first. Subsets that end up with the same models count once."""
    found: dict[tuple[str, ...], Alternative] = {}
    for models, each in tried.items():
        names = tuple(profile.models[index] for index in models)
        if isinstance(each, UnreachableError):
            found.setdefault(names, Alternative(names, fault=each.what))
            continue
        best, p95_ms = each.searched.best, each.prediction.end_to_end.p95_ms
        names = tuple(name for name, share in zip(names, best.routed.shares, strict=True) if share)
        if names not in found or p95_ms < found[names].p95_ms:
            found[names] = Alternative(names, p95_ms, best.routed.quality, best.gpu_ms)
    found.pop(chosen, None)
    return tuple(sorted(found.values(), key=lambda each: each.p95_ms))


def _standard_error(profile: Profile, routed: Routed) -> float:
    accepted = np.zeros(len(profile.prompt_tokens))
    for stage, part in enumerate(routed.reached):
        accepted[part] = profile.quality[part, stage]
    return float(accepted.std(ddof=1) / np.sqrt(len(accepted)))


def _in_words(aim: Aim, fixed_deployment: bool) -> str:
    where = " on the existing replicas" if fixed_deployment else ""
    if aim.most_latency_ms is not None:
        return f"the best quality with a p95 of at most {aim.most_latency_ms:g} ms from request to answer{where}"
    return f"the least p95 of the slowest stage with a quality of at least {aim.least_quality:g}{where}"


def _hash(settings: CascadeSettings, profile: Profile, aim: Aim, fixed_deployment: bool, whole: bool) -> str:
    """A hash of the inputs, which shows whether a plan is out of date."""
    digest = hashlib.sha256(settings.model_dump_json().encode())
    for table in (profile.prompt_tokens, profile.output_tokens, profile.score, profile.quality):
        digest.update(np.ascontiguousarray(table).tobytes())
    digest.update(msgspec.json.encode([*profile.models, aim, fixed_deployment, whole]))
    return f"sha256:{digest.hexdigest()}"
