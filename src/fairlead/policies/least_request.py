"""least_request: the fewest requests in flight at the router, ties at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("least_request")
class LeastRequest(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        return Ranking(least_first(candidates, lambda c: c.inflight_requests, random_tie=rng))
