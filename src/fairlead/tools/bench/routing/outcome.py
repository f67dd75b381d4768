"""What a run showed, as its clients saw it: pure statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from fairlead.statistics import quantile
from fairlead.tools.bench.routing.agents import Answered


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
    ttft_ms, e2e_ms = [a.ttft_ms for a in answers], [a.e2e_ms for a in answers]
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
