"""llm_d_load_aware: cached share of the prompt, and up to a half for a short queue; most wins. Source: llm-d.

The queue is as the engine reports; the cached share is read from the router's one prefix index.
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


@register("llm_d_load_aware")
class LlmDLoadAware(Rule, frozen=True):
    prefix_weight: Annotated[float, Meta(ge=0)] = 1.0
    load_weight: Annotated[float, Meta(ge=0)] = 1.0
    queue_threshold: Annotated[int, Meta(ge=1)] = 128  # requests: a queue this long or longer scores 0

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        prefix_weight, threshold = self.prefix_weight / max(1, request.tokens), self.queue_threshold
        load_weight = self.load_weight / 2 / threshold

        def score(c: Candidate) -> float:
            return prefix_weight * c.cached_tokens + load_weight * (threshold - min(c.waiting_requests, threshold))

        return Ranking(least_first(candidates, lambda c: -score(c), random_tie=rng))
