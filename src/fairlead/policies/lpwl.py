"""lpwl: least prefill work left: the tokens that wait for prefill, and those of this prompt that are not cached."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.facts import RequestFacts
from fairlead.core.pool import Candidate
from fairlead.core.ranking import Ranking, least_first
from fairlead.policies.registry import Rule, register


@register("lpwl")
class Lpwl(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:  # noqa: ARG002
        return Ranking(least_first(candidates, lambda c: c.pending_prefill_tokens + c.uncached_tokens))
