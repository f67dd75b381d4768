"""laar: argmin c(m) * (T + alpha * R) / Q, with a penalty on models already tried. Source: LAAR, section 5.

c(m) is the model's prefill time per token, T the prompt's tokens, R the prompt tokens in flight at the endpoint. The
paper does not give the penalty's form; ours multiplies, so that the best model leads again once every model was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from msgspec import Meta

from fairlead.core.candidates import Candidate
from fairlead.core.cost import CostTerms
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("laar")
class Laar(Rule, frozen=True):
    alpha: Annotated[float, Meta(ge=0)] = 0.7
    retry_penalty: Annotated[float, Meta(ge=1, le=1e6)] = 1000.0  # a model that failed at temperature 0 fails again

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        return Ranking(least_first(candidates, lambda c: self.explain(c).total_ms()))

    def explain(self, candidate: Candidate) -> CostTerms:
        return CostTerms(
            rtt_ms=0.0,
            prefill_ms=candidate.prefill_ms_per_token * (candidate.cached_tokens + candidate.uncached_tokens),
            queue_ms=candidate.prefill_ms_per_token * self.alpha * candidate.inflight_prompt_tokens,
            decode_ms=0.0,
            success_probability=candidate.success_probability,
            attempts=candidate.attempts,
            retry_penalty=self.retry_penalty,
        )
