"""What a run showed and how runs compare: pure statistics.

Every policy serves the same sessions of a repeat, so policies are compared repeat by repeat; intervals are Student's t
over the repeats, which are few: they are wide, and honest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final, NamedTuple

import msgspec

from fairlead.bench.numbers import quantile
from fairlead.bench.routing.agents import Answered

# Of Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
)  # fmt: skip
LEAST_REPEATS: Final = 2
MOST_REPEATS: Final = len(_T) + 1


class Outcome(msgspec.Struct, frozen=True):
    """One policy over the sessions of one cell and repeat, as its clients saw it."""

    cell: str
    policy: str
    repeat: int
    requests: int
    duration_s: float
    cached_share: float  # of all prompt tokens, as the engines said
    ttft_p50_ms: float
    ttft_p95_ms: float
    e2e_p50_ms: float
    e2e_p95_ms: float
    imbalance: float  # requests of the busiest endpoint over the mean


def outcome(
    cell: str, policy: str, repeat: int, answers: Sequence[Answered], duration_s: float, endpoints: int
) -> Outcome:
    ttft_ms, e2e_ms = sorted(a.ttft_ms for a in answers), sorted(a.e2e_ms for a in answers)
    busiest = max(Counter(a.endpoint for a in answers).values())
    return Outcome(
        cell=cell,
        policy=policy,
        repeat=repeat,
        requests=len(answers),
        duration_s=duration_s,
        cached_share=sum(a.cached_tokens for a in answers) / sum(a.prompt_tokens for a in answers),
        ttft_p50_ms=quantile(ttft_ms, 0.5),
        ttft_p95_ms=quantile(ttft_ms, 0.95),
        e2e_p50_ms=quantile(e2e_ms, 0.5),
        e2e_p95_ms=quantile(e2e_ms, 0.95),
        imbalance=busiest * endpoints / len(answers),
    )


class Estimate(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high


def estimate(values: Sequence[float]) -> Estimate:
    """The mean over repeats."""
    mean = fmean(values)
    half = _T[len(values) - 2] * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Ours less theirs, repeat by repeat."""
    return estimate([mine - other for mine, other in zip(ours, theirs, strict=True)])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Ours over theirs, repeat by repeat; the mean is the geometric one, so that twice and half weigh the same."""
    logs = estimate([math.log(mine / other) for mine, other in zip(ours, theirs, strict=True)])
    return Estimate(*map(math.exp, logs))
