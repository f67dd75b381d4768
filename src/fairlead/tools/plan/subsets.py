"""Which models a plan should use at all: the whole cascade, a subset of its models, or one model alone.

A search (`search`) plans the models it is given, and compares plans by their slowest stage, as the paper does. That
ignores how many stages a request goes through, so the best plan of each subset is simulated from arrival to accepted
answer, and these results are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

from fairlead.tools.plan.prediction import Prediction
from fairlead.tools.plan.search import Aim, SearchResult, UnreachableError

Models = tuple[int, ...]  # by their number in the settings, in their order

_TIE = 0.02  # relative; predictions nearer than this are equal, and GPU time decides


@dataclass(frozen=True, slots=True)
class Planned:
    """The best plan of one subset."""

    searched: SearchResult
    prediction: Prediction

    def worth(self, aim: Aim) -> tuple[float, float]:
        """The sort key, less is better: J with the end-to-end latency, then GPU time."""
        best = self.searched.best
        if aim.most_latency_ms is not None:
            return -best.routed.quality, best.gpu_ms
        shortfall = best.score - best.latency_ms  # the penalty for missing quality
        return float(round(log(self.prediction.end_to_end.p95_ms + shortfall) / _TIE)), best.gpu_ms


Tried = dict[Models, Planned | UnreachableError]


def try_subsets(count: int, aim: Aim, plan: Callable[[Models], Planned | UnreachableError]) -> Tried:
    """The whole cascade of `count` models, then the best so far without each one of its models, down to single ones.

    With three models these are all subsets; with more, those that a greedy search visits, and every model alone.
    """
    alone: Tried = {(index,): plan((index,)) for index in range(count)}  # first: quick, and often a bound for others
    best: Models = tuple(range(count))
    tried: Tried = {best: plan(best)}
    while len(best) > 2:
        without_one = [best[:index] + best[index + 1 :] for index in range(len(best))]
        tried |= {models: plan(models) for models in without_one}
        best = min(without_one, key=lambda models: _worth(tried[models], aim))
    return tried | alone


def _worth(planned: Planned | UnreachableError, aim: Aim) -> tuple[float, float]:
    return (float("inf"), 0.0) if isinstance(planned, UnreachableError) else planned.worth(aim)
