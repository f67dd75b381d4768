"""prefix_cache: the longest cached prefix among endpoints not too busy, else the fewest requests. Source: AIBrix.

Too busy is a count above the mean and `deviations` standard deviations; where counts are more than `imbalance_requests`
apart, any count above the least. Ties go at random. AIBrix's own table of blocks (LRU of 200,000, 20 minutes) is not
duplicated: the matched share is read from the router's prefix index.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from random import Random
from typing import Annotated

from msgspec import Meta

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("prefix_cache")
class PrefixCache(Rule, frozen=True):
    imbalance_requests: Annotated[int, Meta(ge=0)] = 8
    deviations: Annotated[float, Meta(ge=0)] = 1.0

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        counts = [c.inflight_requests for c in candidates]
        least, most = min(counts), max(counts)
        ceiling = least if most - least > self.imbalance_requests else _mean_and(self.deviations, counts)

        def key(c: Candidate) -> float:
            requests = c.inflight_requests
            if (
                c.cached_tokens and requests <= ceiling
            ):  # the count, scaled below one token, breaks ties between equal matches
                return requests / (most + 1) - c.cached_tokens
            return requests

        return Ranking(least_first(candidates, key, random_tie=rng))


def _mean_and(deviations: float, counts: list[int]) -> float:
    n, total = len(counts), sum(counts)
    return (total + deviations * sqrt(n * sum([count * count for count in counts]) - total * total)) / n
