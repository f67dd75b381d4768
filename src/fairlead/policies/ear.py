"""ear: a session's bound endpoint, whatever its load; a new session goes where the fewest tokens wait for prefill.

Source: EAR. The router keeps the bindings. This rule moves no session off a hot endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("ear")
class Ear(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        order = least_first(candidates, lambda c: -1.0 if c.is_affine else c.pending_prefill_tokens)
        return Ranking(order, "affinity" if order[0].candidate.is_affine else "cost")
