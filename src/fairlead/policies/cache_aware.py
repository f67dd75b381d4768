"""cache_aware: the longest cached prefix if it is long enough and load is even, else the fewest requests.

Source: SGLang's router, with the defaults of its launcher; its library has 0.5, 32 and 1.1. Load is requests in flight.
The comment at the head of its source still says that a short match goes to the smallest tree; its code takes the least
loaded. SGLang's own tree of characters is not duplicated: matches are read from the router's prefix index.
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


@register("cache_aware")
class CacheAware(Rule, frozen=True):
    cache_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.3  # share of the prompt
    balance_abs_threshold: Annotated[int, Meta(ge=0)] = 64  # requests
    balance_rel_threshold: Annotated[float, Meta(ge=1)] = 1.5

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        counts = [c.inflight_requests for c in candidates]
        least, most = min(counts), max(counts)
        uneven = most - least > self.balance_abs_threshold and most > self.balance_rel_threshold * least
        if not uneven and max([c.cached_tokens for c in candidates]) > self.cache_threshold * request.tokens:
            return Ranking(least_first(candidates, lambda c: -c.cached_tokens))
        return Ranking(least_first(candidates, lambda c: c.inflight_requests))
