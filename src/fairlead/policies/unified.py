"""unified: the session's owner if it has the prompt cached and is not overloaded, else lmetric.

Source: prototype of EAR.

Its tuned form is `overload: 1.3`. It omits the plus one of lmetric (see there), so idle endpoints tie at 0; ties go by
new uncached tokens, then requests, then in turn. The router makes the chosen endpoint the owner; no KV moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from msgspec import Meta

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranked, Ranking
from fairlead.policies.registry import Rule, register


@register("unified")
class Unified(Rule, frozen=True):
    hit_share: Annotated[float, Meta(ge=0, le=1)] = 0.5  # the share of the prompt cached at the owner must be greater
    overload: Annotated[float, Meta(ge=0)] = 2.0  # times the mean requests, which the owner must not exceed
    plus_one: bool = False

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        kept = [c for c in candidates if c.is_affine and self._keeps(c, request, candidates)]
        one = int(self.plus_one)
        scored = [
            (
                not c.is_affine if kept else False,
                (c.pending_prefill_tokens + c.uncached_tokens) * (c.inflight_requests + one),
                c.uncached_tokens,
                c.inflight_requests,
                c.last_chosen,
                position,
            )
            for position, c in enumerate(candidates)
        ]
        scored.sort()
        order = [Ranked(candidates[position], score) for _, score, _, _, _, position in scored]
        return Ranking(order, "affinity" if kept else "cost")

    def _keeps(self, owner: Candidate, request: RequestFacts, candidates: Sequence[Candidate]) -> bool:
        mean_requests = sum([c.inflight_requests for c in candidates]) / len(candidates)
        return (
            owner.cached_tokens > self.hit_share * request.tokens
            and owner.inflight_requests <= self.overload * mean_requests
        )
