"""power_of_two: of two endpoints drawn at random, the one with fewer requests in flight at the router."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("power_of_two")
class PowerOfTwo(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        drawn = rng.sample(candidates, len(candidates))
        pair, rest = drawn[:2], drawn[2:]
        return Ranking([*least_first(pair, lambda c: c.inflight_requests), *least_first(rest, lambda _: 0.0)])
