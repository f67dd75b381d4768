"""ear: a session's host, whatever its load; a new session goes where the fewest tokens wait for prefill. Source: EAR.

The router knows which endpoint is the host and when it ceases to be. This rule moves no session off a hot host.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.facts import RequestFacts
from fairlead.core.pool import Candidate
from fairlead.core.ranking import Ranking, least_first
from fairlead.policies.registry import Rule, register


@register("ear")
class Ear(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:  # noqa: ARG002
        order = least_first(candidates, lambda c: -1.0 if c.is_host else c.pending_prefill_tokens)
        return Ranking(order, "affinity" if order[0].candidate.is_host else "cost")
