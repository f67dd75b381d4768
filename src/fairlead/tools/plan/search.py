"""The search, alternating between two levels: thresholds set each model's load, loads set the GPUs, GPUs set latencies.

Source: Cascadia algorithm 1.

It ends when no round finds a better plan. Each round simulates the loads of the present thresholds, then compares all
threshold vectors, each with the deployment that is best for it. The answer is the best of the vectors whose own loads
were simulated, and a short list of what else is estimated to be nearly as good, for `refine`.

For a quality, plans are compared by their slowest stage, as in the paper; for a limit on latency, by what a request
takes through all its stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import UserError
from fairlead.tools.plan.allocation import Allocation, allocated, by_dynamic_program, by_least_sum, least_maximum_ms
from fairlead.tools.plan.capacity import Strategy, gpus_of
from fairlead.tools.plan.objective import LeastLatency, MostQuality, Objective
from fairlead.tools.plan.routing import Profile, Routed, candidates, proportional, route
from fairlead.tools.plan.workload import Stage

Floats = NDArray[np.float64]

_STABLE_ROUNDS = 2
_MOST_ROUNDS = 12
_TAIL = 0.05  # of the requests: what their p95 leaves out
_NEAR = 0.2  # plans estimated this much worse than the best may be better when they are simulated
_SHARES_APART = 0.02
_MOVED = (1, 2, 4, 8)  # GPUs
_TIE = 0.005  # latencies come in steps of one percent: less than half of one is no difference


@dataclass(frozen=True, slots=True)
class Aim:
    """What the user wants: the least latency with at least this quality, or the most quality within this latency."""

    least_quality: float | None = None
    most_latency_ms: float | None = None
    penalty: float | None = None  # None: large enough that plans which meet the aim always win


@dataclass(frozen=True, slots=True)
class Demand:
    """What a cascade is planned for."""

    aim: Aim
    rate_per_ms: float
    judge_ms: float
    utopia: float  # quality of the largest model alone
    nadir: float  # quality of the smallest model alone


class UnreachableError(UserError):
    """No plan reaches the aim. `what` is the reason without the advice."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
        self.what = what


@dataclass(frozen=True, slots=True)
class ScoredPlan:
    """A plan as the search sees it."""

    routed: Routed
    strategies: tuple[Strategy, ...]
    stage_ms: tuple[float, ...]  # p95 of each stage, including its judge
    score: float
    gpu_ms: float  # busy GPU time per request

    @property
    def latency_ms(self) -> float:
        return max(self.stage_ms)


@dataclass(frozen=True, slots=True)
class SearchResult:
    best: ScoredPlan
    latency_ms: Floats  # of every vector of thresholds, with its best deployment
    quality: Floats
    vectors: Sequence[Routed]
    tables: _Tables
    objective: Objective

    def plan_of(self, index: int) -> ScoredPlan | None:
        """The best deployment for a vector of thresholds."""
        return self.tables.found(self.vectors[index], self.objective)

    def shortlist(self, most: int) -> list[ScoredPlan]:
        """The best plan, others that are estimated nearly as good and differ, and other divisions of the GPUs."""
        scores = self.objective.score(self.latency_ms, self.quality)
        chosen = [self.best]
        for index in np.argsort(scores)[: 8 * most]:
            if len(chosen) >= most - most // 3 or scores[index] > (1 + _NEAR) * scores.min():
                break
            plan = self.plan_of(int(index))
            if plan is not None and all(_differ(plan, other) for other in chosen):
                chosen.append(plan)
        for plan in self.tables.divided_otherwise(self.best, self.objective):
            if len(chosen) >= most or plan.score > (1 + _NEAR) * self.best.score:
                break
            if all(_differ(plan, other) for other in chosen):
                chosen.append(plan)
        return chosen


def _differ(one: ScoredPlan, other: ScoredPlan) -> bool:
    apart = max(abs(a - b) for a, b in zip(one.routed.shares, other.routed.shares, strict=True))
    return one.strategies != other.strategies or apart > _SHARES_APART


def search(stages: Sequence[Stage], profile: Profile, demand: Demand, progressed: Callable[[], None]) -> SearchResult:
    """Raises UnreachableError if no thresholds reach the aim, or the GPUs do not carry the rate."""
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
        stage.simulate(part if part.any() else everything, progressed)
    best: ScoredPlan | None = None
    rounds: list[float] = []
    while True:
        latency_ms = np.array([tables.least_ms(each) for each in vectors])
        objective = _objective(demand, latency_ms, quality)
        scores = objective.score(latency_ms, quality)
        is_estimate = aim.most_latency_ms is not None  # simulations of whole requests decide later
        strict = aim.penalty is None and not is_estimate
        acceptable = objective.met(latency_ms, quality) if strict else np.isfinite(scores)
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
                stage.simulate(part, progressed)
    # Estimates scaled from other loads may have been too optimistic.
    if best is None or (strict and not _meets(best, objective)):
        raise _unreachable(demand, latency_ms)
    return SearchResult(best, latency_ms, quality, vectors, tables, objective)


class _Tables:
    """From a vector of thresholds to the stages' latency tables, and to the deployment that is best for them."""

    def __init__(self, stages: Sequence[Stage], demand: Demand) -> None:
        self._stages = stages
        self._rate_per_ms = demand.rate_per_ms
        self._judge_ms = [demand.judge_ms] * (len(stages) - 1) + [0.0]
        self._whole_requests = demand.aim.most_latency_ms is not None

    def of(self, routed: Routed) -> list[Floats]:
        return [
            stage.latency_ms(part, share * self._rate_per_ms) + (judge_ms if share else 0.0)
            for stage, part, share, judge_ms in zip(
                self._stages, routed.reached, routed.shares, self._judge_ms, strict=True
            )
        ]

    def found(self, routed: Routed, objective: Objective) -> ScoredPlan | None:
        tables = self.of(routed)
        if self._whole_requests:
            allocation = by_least_sum(tables, _weights(routed))
        else:
            allocation = by_dynamic_program(tables, routed.shares)
        return None if allocation is None else self._found(routed, allocation, objective)

    def least_ms(self, routed: Routed) -> float:
        """The least latency that any division of the GPUs gives these thresholds."""
        tables = self.of(routed)
        if not self._whole_requests:
            return least_maximum_ms(tables)
        allocation = by_least_sum(tables, _weights(routed))
        return float("inf") if allocation is None else _request_ms(allocation, tables, routed)

    def divided_otherwise(self, plan: ScoredPlan, objective: Objective) -> list[ScoredPlan]:
        """The same thresholds with GPUs moved from one model to another; the best first."""
        tables, shares = self.of(plan.routed), plan.routed.shares
        gpus = [gpus_of(strategy) for strategy in plan.strategies]
        spare = len(tables[0]) - 1 - sum(gpus)
        found = []
        for giver in range(-1, len(gpus)):
            for taker in range(len(gpus)):
                for moved in _MOVED:
                    left = (spare if giver < 0 else gpus[giver]) - moved
                    if giver == taker or left < 0 or not shares[taker]:
                        continue
                    counts = [
                        count + moved * (index == taker) - moved * (index == giver) for index, count in enumerate(gpus)
                    ]
                    allocation = allocated(counts, tables)
                    if np.isfinite(allocation.latency_ms):
                        found.append(self._found(plan.routed, allocation, objective))
        return sorted(found, key=lambda each: each.score)

    def _found(self, routed: Routed, allocation: Allocation, objective: Objective) -> ScoredPlan:
        strategies, stage_ms, gpu_ms = [], [], 0.0
        tables = self.of(routed)
        for index, (stage, part, share) in enumerate(zip(self._stages, routed.reached, routed.shares, strict=True)):
            gpus = allocation.gpus[index]
            strategy = stage.strategy(part, share * self._rate_per_ms, gpus)
            strategies.append(strategy)
            stage_ms.append(float(tables[index][gpus]))
            if share:
                gpu_ms += share * stage.busy_gpu_ms(part, strategy)
        compared_ms = _request_ms(allocation, tables, routed) if self._whole_requests else allocation.latency_ms
        latency_ms = np.array([compared_ms])
        score = float(objective.score(latency_ms, np.array([routed.quality]))[0])
        return ScoredPlan(routed, tuple(strategies), tuple(stage_ms), score, gpu_ms)


def _weights(routed: Routed) -> list[float]:
    """How much each stage's p95 counts for the p95 of requests: fully if more than the slowest twentieth reach it."""
    return [min(1.0, share / _TAIL) for share in routed.shares]


def _request_ms(allocation: Allocation, tables: Sequence[Floats], routed: Routed) -> float:
    """About the p95 of a request, from arrival to accepted answer."""
    return sum(
        weight * float(table[count])
        for weight, table, count in zip(_weights(routed), tables, allocation.gpus, strict=True)
    )


def _meets(found: ScoredPlan, objective: Objective) -> bool:
    return bool(objective.met(np.array([found.latency_ms]), np.array([found.routed.quality]))[0])


def _better(found: ScoredPlan) -> tuple[float, float, int]:
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
