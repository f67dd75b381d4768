"""llm_d_affinity: `llm_d` among the endpoints that have most of the prompt cached, unless these are far behind.

Source: llm-d's prefix-cache-affinity-filter, of its newer default. Endpoints with a cached share of at least
`affinity_share` are kept alone, if there are any. They are not, where the best of them has an estimated TTFT of more
than `most_wait_ms` above that of the best other; the estimate is the tokens in flight that wait for prefill, at
`prefill_tokens_per_s`. Its scorers are those of `llm_d` without the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from msgspec import Meta

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.policies.llm_d import LlmD
from fairlead.policies.registry import register


@register("llm_d_affinity")
class LlmDAffinity(LlmD, frozen=True):
    no_hit_lru_weight: Annotated[float, Meta(ge=0)] = 0.0
    affinity_share: Annotated[float, Meta(ge=0, le=1)] = 0.8
    most_wait_ms: Annotated[float, Meta(ge=0)] = 18_000.0
    prefill_tokens_per_s: Annotated[float, Meta(gt=0)] = 15_928.0

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        least_tokens = self.affinity_share * request.tokens
        sticky = [c for c in candidates if c.cached_tokens >= least_tokens]
        others = [c for c in candidates if c.cached_tokens < least_tokens]
        if not sticky or not others or self._wait_ms(sticky) - self._wait_ms(others) > self.most_wait_ms:
            return super().rank(request, candidates, rng)
        kept, rest = super().rank(request, sticky, rng), super().rank(request, others, rng)
        return Ranking([*kept.order, *rest.order])

    def _wait_ms(self, candidates: Sequence[Candidate]) -> float:
        """The least estimated TTFT of any of them."""
        return min([c.pending_prefill_tokens for c in candidates]) / self.prefill_tokens_per_s * 1e3
