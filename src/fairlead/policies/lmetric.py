"""lmetric: (queued prefill + prompt - hit) * (batch size + 1), least wins. Source: LMetric, OSDI'26.

The batch size, running and queued, is the router's own count of requests in flight: it is never stale. The prototype of
EAR omits the plus one (`plus_one: false`): then every idle endpoint scores 0, whatever it has cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register


@register("lmetric")
class LMetric(Rule, frozen=True):
    plus_one: bool = True

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        one = int(self.plus_one)
        return Ranking(
            least_first(
                candidates, lambda c: (c.pending_prefill_tokens + c.uncached_tokens) * (c.inflight_requests + one)
            )
        )
