"""lpwl: least prefill work left: tokens waiting for prefill, plus the uncached tokens of this prompt."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("lpwl")
class Lpwl(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        return Ranking(least_first(candidates, lambda c: c.pending_prefill_tokens + c.uncached_tokens))
