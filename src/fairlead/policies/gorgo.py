"""gorgo: rtt_weight * rtt_ms + uncached + queue_weight * queued tokens, least wins. Source: GORGO, its frozen weights.

Milliseconds and tokens are added at weight 1, as published; `fairlead` has the same terms in milliseconds. Queued
tokens are the raw prompt tokens of every unfinished request. With `release_at_first_token` they count only until the
first token, and without what was cached: GORGO's own option counts the raw tokens, which the ledger does not keep
separately.
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


@register("gorgo")
class Gorgo(Rule, frozen=True):
    rtt_weight: Annotated[float, Meta(ge=0)] = 0.276
    queue_weight: Annotated[float, Meta(ge=0)] = 0.5
    release_at_first_token: bool = False

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        rtt_weight, queue_weight, release = self.rtt_weight, self.queue_weight, self.release_at_first_token

        def cost(c: Candidate) -> float:
            queued_tokens = c.pending_prefill_tokens if release else c.inflight_prompt_tokens
            return rtt_weight * c.rtt_ms + c.uncached_tokens + queue_weight * queued_tokens

        return Ranking(least_first(candidates, cost))
