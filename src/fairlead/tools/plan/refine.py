"""The last step of a search: its best few plans are simulated as whole cascades, and the simulation decides.

The search compares thousands of plans by tables: latencies that were simulated for some loads and scaled to others. The
best of thousands of such estimates is often one that was too low. So what it finds is a short list, of different
deployments and thresholds, and each plan of it is simulated from arrival to accepted answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from fairlead.tools.plan.prediction import Prediction
from fairlead.tools.plan.search import ScoredPlan, SearchResult

SHORTLIST = 8
_MOST_SIMULATED = 10  # for a limit on latency: each simulation shows which quality to try next
_LEAST_RATIO = 0.5  # of a request's p95 to the sum of its stages'
_TIE = 0.005  # of the latency: then GPU time decides

Simulate = Callable[[ScoredPlan], Prediction]


@dataclass(frozen=True, slots=True)
class Refined:
    plan: ScoredPlan
    prediction: Prediction


def least_latency(searched: SearchResult, simulate: Simulate, useful_ms: float = float("inf")) -> Refined:
    """The plan of the short list whose slowest stage is the fastest when the whole cascade is simulated.

    It is the one that the search found best, alone simulated, if its requests then have a p95 above `useful_ms`: the
    others of the list are not that much faster.
    """
    tried: list[tuple[float, ScoredPlan, Prediction]] = []
    for plan in searched.shortlist(SHORTLIST):
        prediction = simulate(plan)
        if not tried and prediction.end_to_end.p95_ms > useful_ms:
            return Refined(plan, prediction)
        slowest_ms = max(stage.p95_ms for stage in prediction.stages)
        tried.append((slowest_ms + plan.score - plan.latency_ms, plan, prediction))
    least = min(score for score, _, _ in tried)
    near = [each for each in tried if each[0] <= least * (1 + _TIE)]
    _, plan, prediction = min(near, key=lambda each: each[1].gpu_ms)
    return Refined(plan, prediction)


def most_quality(searched: SearchResult, most_latency_ms: float, simulate: Simulate) -> Refined | float:
    """The best quality whose requests have a p95 within the limit when they are simulated; the least p95 if none has.

    Estimates of a request's p95 are added up from its stages' and so too high, by about the same share for similar
    plans: each simulation corrects the next guess. The first may be of one stage, whose estimate is right: so where no
    other seems to be within the limit, the fastest of those that may be is tried too.
    """
    best: Refined | None = None
    least_ms = float("inf")
    ratios: list[float] = []
    untried = set(range(len(searched.vectors)))
    fastest = int(searched.latency_ms.argmin())
    for _ in range(_MOST_SIMULATED):
        least = -float("inf") if best is None else best.plan.routed.quality
        more = [index for index in untried if searched.quality[index] > least]
        ratio = median(ratios[-3:]) if ratios else 1.0
        better = [index for index in more if searched.latency_ms[index] * ratio <= most_latency_ms]
        if not better and ratios:
            doubtful = [index for index in more if searched.latency_ms[index] * _LEAST_RATIO <= most_latency_ms]
            better = sorted(doubtful, key=lambda index: float(searched.latency_ms[index]))[:1]
        if not better:
            if best is not None or fastest not in untried:
                break
            better = [fastest]
        chosen = max(better, key=lambda index: (searched.quality[index], -searched.latency_ms[index]))
        untried.discard(chosen)
        plan = searched.plan_of(chosen)
        if plan is None:
            continue
        prediction = simulate(plan)
        least_ms = min(least_ms, prediction.end_to_end.p95_ms)
        ratios.append(prediction.end_to_end.p95_ms / float(searched.latency_ms[chosen]))
        if prediction.end_to_end.p95_ms <= most_latency_ms:
            best = Refined(plan, prediction)
        else:  # what is estimated slower and is no better is slower
            untried -= {
                index
                for index in untried
                if searched.latency_ms[index] >= searched.latency_ms[chosen]
                and searched.quality[index] >= searched.quality[chosen]
            }
    return least_ms if best is None else best


def with_best(searched: SearchResult, refined: Refined) -> SearchResult:
    return replace(searched, best=refined.plan)
