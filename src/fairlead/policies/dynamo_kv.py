"""dynamo_kv: overlap_score_weight * prefill + active tokens, least wins. Source: NVIDIA Dynamo's KV router.

Prefill is what would wait there with this prompt: tokens waiting for prefill and those of the prompt that are not
cached. Active are the prompt tokens of every unfinished request, as Dynamo counts without output blocks; it counts a
block that several requests share once, which the router does not know. Dynamo counts in blocks, which divides both
alike, and samples from a softmax; at its default temperature 0 that is the least.
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


@register("dynamo_kv")
class DynamoKv(Rule, frozen=True):
    overlap_score_weight: Annotated[float, Meta(ge=0)] = 1.0

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        weight = self.overlap_score_weight

        def logit(c: Candidate) -> float:
            return weight * (c.pending_prefill_tokens + c.uncached_tokens) + c.inflight_prompt_tokens

        return Ranking(least_first(candidates, logit, random_tie=rng))
