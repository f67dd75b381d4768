"""round_robin: each endpoint in turn, in the order of their addresses.

The endpoint chosen longest ago is the next one: the turn needs no counter, and survives endpoints that come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.facts import RequestFacts
from fairlead.core.pool import Candidate
from fairlead.core.ranking import Ranking, least_first
from fairlead.policies.registry import Rule, register


@register("round_robin")
class RoundRobin(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:  # noqa: ARG002
        by_address = sorted(candidates, key=lambda c: c.address)
        return Ranking(least_first(by_address, lambda c: c.last_chosen))
