"""llm_d: a weighted sum of queue, KV utilisation, cached prefix and turn, most wins. Source: llm-d, optimized baseline.

Queue and utilisation are as the engines report. The cached share of the prompt is read from the router's one prefix
index: llm-d's own LRU of 31,250 blocks of 64 characters per endpoint is not duplicated. The turn (no-hit LRU) spreads
prompts that nobody has cached; llm-d remembers when an endpoint last got such a prompt, here any prompt counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from msgspec import Meta

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("llm_d")
class LlmD(Rule, frozen=True):
    queue_weight: Annotated[float, Meta(ge=0)] = 2.0
    kv_usage_weight: Annotated[float, Meta(ge=0)] = 2.0
    prefix_weight: Annotated[float, Meta(ge=0)] = 3.0
    no_hit_lru_weight: Annotated[float, Meta(ge=0)] = 2.0

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        waiting = [c.waiting_requests for c in candidates]
        longest = max(waiting)
        queue_weight = self.queue_weight / ((longest - min(waiting)) or 1)
        prefix_weight, kv_usage_weight = self.prefix_weight / max(1, request.tokens), self.kv_usage_weight
        turns = self._turns(candidates)

        def score(c: Candidate) -> float:
            return (
                queue_weight * (longest - c.waiting_requests)
                + kv_usage_weight * (1.0 - c.kv_usage)
                + prefix_weight * c.cached_tokens
                + turns.get(c.address, 0.0)
            )

        return Ranking(least_first(candidates, lambda c: -score(c), random_tie=rng))

    def _turns(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Turn scores: from the weight, for the endpoint chosen longest ago, down to 0; none if any has a match."""
        if any(c.cached_tokens for c in candidates):
            return {}
        step = self.no_hit_lru_weight / max(1, len(candidates) - 1)
        by_turn = sorted(candidates, key=lambda c: c.last_chosen)
        return {c.address: self.no_hit_lru_weight - step * turn for turn, c in enumerate(by_turn)}
