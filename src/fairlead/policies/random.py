"""random: any endpoint, each as likely."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.facts import RequestFacts
from fairlead.core.pool import Candidate
from fairlead.core.ranking import Ranking, least_first
from fairlead.policies.registry import Rule, register


@register("random")
class Uniform(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:  # noqa: ARG002
        return Ranking(least_first(candidates, lambda _: 0.0, random_tie=rng))
