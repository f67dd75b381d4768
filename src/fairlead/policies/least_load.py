"""least_load: the engine's reported load (running, queued, cached) plus the router's prompt tokens in flight.

Requests and tokens are added at weight 1, as published, so tokens decide. Source: the baseline of GORGO.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("least_load")
class LeastLoad(Rule, frozen=True):
    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        return Ranking(least_first(candidates, _load))


def _load(c: Candidate) -> float:
    return c.running_requests + c.waiting_requests + c.used_tokens + c.inflight_prompt_tokens
