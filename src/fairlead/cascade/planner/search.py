"""The two levels in turn: thresholds decide each model's load, the load decides the GPUs, the GPUs decide the latency
of thresholds, until nothing better is found. Source: Cascadia algorithm 1.

Each round simulates the loads of the present thresholds, then compares all threshold vectors, each with the deployment
that is best for it. The answer is the best of the vectors whose own loads were simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.cascade.planner.allocation import Allocation, by_dynamic_program, least_maximum_ms
from fairlead.cascade.planner.capacity import Strategy, gpus_of
from fairlead.cascade.planner.objective import LeastLatency, MostQuality, Objective
from fairlead.cascade.planner.routing import Profile, Routed, candidates, proportional, route
from fairlead.cascade.planner.workload import Stage
from fairlead.errors import UserError

Floats = NDArray[np.float64]

_STABLE_ROUNDS = 2
_MOST_ROUNDS = 12
_TIE = 0.005  # latencies come in steps of one percent: less than half of one is no difference


@dataclass(frozen=True, slots=True)
class Aim:
    """What the user wants: the least latency with at least this quality, or the most quality within this latency."""

    least_quality: float | None = None
    most_latency_ms: float | None = None
    penalty: float | None = None  # None: so large that no plan that misses the aim beats one that meets it


@dataclass(frozen=True, slots=True)
class Demand:
    """What a cascade is planned for."""

    aim: Aim
    rate_per_ms: float
    judge_ms: float
    utopia: float  # quality of the largest model alone
    nadir: float  # quality of the smallest model alone


class UnreachableError(UserError):
    """No plan reaches the aim. `what` says why without the advice."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
        self.what = what


@dataclass(frozen=True, slots=True)
class Found:
    """A plan as the search sees it."""

    routed: Routed
    strategies: tuple[Strategy, ...]
    stage_ms: tuple[float, ...]  # p95 of each stage, with the judge behind it
    score: float
    gpu_ms: float  # busy GPU time per request

    @property
    def latency_ms(self) -> float:
        return max(self.stage_ms)


@dataclass(frozen=True, slots=True)
class Searched:
    best: Found
    latency_ms: Floats  # of every vector of thresholds, with its best deployment
    quality: Floats


def search(
    stages: Sequence[Stage], profile: Profile, demand: Demand, told: Callable[[], None] = lambda: None
) -> Searched:
    """Raises UnreachableError where no thresholds reach the aim, or the GPUs do not carry the rate."""
    aim = demand.aim
    vectors = candidates(profile)
    quality = np.array([each.quality for each in vectors])
    if aim.least_quality is not None and quality.max() < aim.least_quality:
        raise UnreachableError(
            f"quality {aim.least_quality:g} is above {quality.max():.4g}, the best that any thresholds reach on this "
            "profile",
            "ask for less, or add a better model",
        )
    tables = _Tables(stages, demand)
    everything = np.ones(len(profile.prompt_tokens), dtype=bool)
    present = route(profile, proportional(profile))
    for stage, part in zip(stages, present.reached, strict=True):
        stage.simulate(part if part.any() else everything, told)
    best: Found | None = None
    rounds: list[float] = []
    while True:
        latency_ms = np.array([least_maximum_ms(tables.of(each)) for each in vectors])
        objective = _objective(demand, latency_ms, quality)
        scores = objective.score(latency_ms, quality)
        acceptable = objective.met(latency_ms, quality) if aim.penalty is None else np.isfinite(scores)
        if not acceptable.any():
            raise _unreachable(demand, latency_ms)
        # Penalties follow the latencies seen in a round, so what was found before is scored again.
        again = [present.thresholds] if best is None else [present.thresholds, best.routed.thresholds]
        found = [tables.found(route(profile, each), objective) for each in again]
        best = min((each for each in found if each is not None), key=_better, default=None)
        rounds.append(best.score if best is not None else float("inf"))
        tied = np.flatnonzero(scores <= scores.min() + _TIE * abs(scores.min()))
        proposals = [tables.found(vectors[index], objective) for index in tied]
        present = min((each for each in proposals if each is not None), key=_better).routed
        settled = all(s.knows(part) for s, part in zip(stages, present.reached, strict=True) if part.any())
        if best is not None and settled and present.thresholds == best.routed.thresholds:
            break
        if len(rounds) >= _MOST_ROUNDS or _stable(rounds):
            break
        for stage, part in zip(stages, present.reached, strict=True):
            if part.any():
                stage.simulate(part, told)
    # What was stretched from other loads may have promised too much.
    if best is None or (aim.penalty is None and not _meets(best, objective)):
        raise _unreachable(demand, latency_ms)
    return Searched(best, latency_ms, quality)


class _Tables:
    """From a vector of thresholds to the stages' latency tables, and to the deployment that is best for them."""

    def __init__(self, stages: Sequence[Stage], demand: Demand) -> None:
        self._stages = stages
        self._rate_per_ms = demand.rate_per_ms
        self._judge_ms = [demand.judge_ms] * (len(stages) - 1) + [0.0]

    def of(self, routed: Routed) -> list[Floats]:
        return [
            stage.latency_ms(part, share * self._rate_per_ms) + (judge_ms if share else 0.0)
            for stage, part, share, judge_ms in zip(
                self._stages, routed.reached, routed.shares, self._judge_ms, strict=True
            )
        ]

    def found(self, routed: Routed, objective: Objective) -> Found | None:
        allocation = by_dynamic_program(self.of(routed), routed.shares)
        return None if allocation is None else self._found(routed, allocation, objective)

    def _found(self, routed: Routed, allocation: Allocation, objective: Objective) -> Found:
        strategies, stage_ms, gpu_ms = [], [], 0.0
        tables = self.of(routed)
        for index, (stage, part, share) in enumerate(zip(self._stages, routed.reached, routed.shares, strict=True)):
            gpus = allocation.gpus[index]
            strategy = stage.strategy(part, share * self._rate_per_ms, gpus)
            strategies.append(strategy)
            stage_ms.append(float(tables[index][gpus]))
            if share:
                gpu_ms += share * stage.busy_gpu_ms(part, strategy)
        latency_ms = np.array([allocation.latency_ms])
        score = float(objective.score(latency_ms, np.array([routed.quality]))[0])
        return Found(routed, tuple(strategies), tuple(stage_ms), score, gpu_ms)


def _meets(found: Found, objective: Objective) -> bool:
    return bool(objective.met(np.array([found.latency_ms]), np.array([found.routed.quality]))[0])


def _better(found: Found) -> tuple[float, float, int]:
    """Objectives that differ by less than the step of latencies are tied; GPU time decides."""
    step = round(np.log(abs(found.score)) / _TIE) if found.score else 0
    return float(np.copysign(step, found.score)), found.gpu_ms, sum(map(gpus_of, found.strategies))


def _stable(rounds: Sequence[float]) -> bool:
    last = rounds[-_STABLE_ROUNDS - 1 :]
    return len(last) > _STABLE_ROUNDS and max(last) - min(last) <= _TIE * abs(last[-1])


def _objective(demand: Demand, latency_ms: Floats, quality: Floats) -> Objective:
    aim = demand.aim
    finite_ms = latency_ms[np.isfinite(latency_ms)]
    fastest, slowest = (float(finite_ms.min()), float(finite_ms.max())) if len(finite_ms) else (0.0, 1.0)
    slowest = max(slowest, fastest * 1.01)
    if aim.most_latency_ms is not None:
        over_ms = finite_ms[finite_ms > aim.most_latency_ms] - aim.most_latency_ms
        least_over = float(over_ms.min()) if len(over_ms) else 1.0
        penalty = aim.penalty or 2 * (float(np.ptp(quality)) + 1) * (slowest - fastest) / least_over
        return MostQuality(aim.most_latency_ms, fastest, slowest, penalty)
    least_quality = aim.least_quality or 0.0
    short = least_quality - quality[quality < least_quality]
    least_short = float(short.min()) / (demand.utopia - demand.nadir) if len(short) else 1.0
    penalty = aim.penalty or 2 * slowest / least_short
    return LeastLatency(least_quality, demand.utopia, demand.nadir, penalty)


def _unreachable(demand: Demand, latency_ms: Floats) -> UnreachableError:
    fastest_ms = float(latency_ms.min())
    if not np.isfinite(fastest_ms) or demand.aim.most_latency_ms is None:
        return UnreachableError(
            f"these GPUs do not carry {demand.rate_per_ms * 1000:g} requests a second at this quality",
            "give more GPUs, or ask for a lower rate or quality",
        )
    return UnreachableError(f"no plan is faster than {fastest_ms:,.0f} ms", "allow a higher latency, or give more GPUs")
