"""round_robin: each endpoint in turn, in the order of their addresses.

The endpoint chosen longest ago is next, so no counter is needed, and endpoints may come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("round_robin")
class RoundRobin(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        by_address = sorted(candidates, key=lambda c: c.address)
        return Ranking(least_first(by_address, lambda c: c.last_chosen))
