"""fairlead: the default policy. Network, cache, queue and decoding in one cost, divided by the chance of being right.

cost = (rtt_weight * rtt + prefill_ms_per_token * (uncached * (1 + crowd_weight * least in-flight of all candidates
        + stall_weight * in-flight) + queue_weight * pending)
        + decode_ms_per_token * output * (1 + batch_weight * batch_slowdown * in-flight)) / Q * penalty^attempts
A prefill stalls the requests that are already there. Wherever it goes, it stalls as many as the least crowded endpoint
has: that is counted as if it were ours, so a pool without idle endpoints makes more of what it has cached. Of those
beyond, a share is counted: more would send long prompts to where few requests are but many tokens wait. An answer is
slowed by those beside it and slows each of them as much: that is counted twice. Every term is in milliseconds, so these
weights are the physical ones. Sources: GORGO (network, cache, queue), LAAR (Q).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from msgspec import Meta

from fairlead.core.cost import CostTerms
from fairlead.core.facts import RequestFacts
from fairlead.core.pool import Candidate
from fairlead.core.ranking import Ranking, in_order
from fairlead.policies.registry import Rule, register


@register("fairlead")
class Fairlead(Rule, frozen=True):
    rtt_weight: Annotated[float, Meta(ge=0)] = 1.0
    queue_weight: Annotated[float, Meta(ge=0)] = 1.0
    crowd_weight: Annotated[float, Meta(ge=0)] = 1.0
    stall_weight: Annotated[float, Meta(ge=0)] = 0.05  # settled by replays: docs/decisions
    batch_weight: Annotated[float, Meta(ge=0)] = 2.0
    tie_ms: Annotated[float, Meta(ge=0)] = 2.0  # costs closer than the noise of measured round trips are equal
    retry_penalty: Annotated[float, Meta(ge=1, le=1e6)] = 1000.0  # a model that failed at temperature 0 fails again

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:  # noqa: ARG002
        rtt_weight, queue_weight, batch_weight = self.rtt_weight, self.queue_weight, self.batch_weight
        stall_weight, penalty = self.stall_weight, self.retry_penalty
        stalled_share = 1 + self.crowd_weight * candidates[0].least_inflight_requests
        costs_ms = []
        for c in candidates:  # a call for each would take a tenth longer
            inflight = c.inflight_requests
            stalled_tokens = c.uncached_tokens * (stalled_share + stall_weight * inflight)
            latency_ms = (
                rtt_weight * c.rtt_ms
                + c.prefill_ms_per_token * (stalled_tokens + queue_weight * c.pending_prefill_tokens)
                + c.decode_ms_per_token * c.output_tokens * (1 + batch_weight * c.batch_slowdown * inflight)
            )
            costs_ms.append(latency_ms / c.success_probability * (penalty**c.attempts if c.attempts else 1.0))
        order = in_order(candidates, costs_ms, tie_width=self.tie_ms)
        return Ranking(order, "affinity" if order[0].candidate.is_host else "cost")

    def explain(self, candidate: Candidate) -> CostTerms:
        c = candidate
        stalled = 1 + self.crowd_weight * c.least_inflight_requests + self.stall_weight * c.inflight_requests
        return CostTerms(
            rtt_ms=self.rtt_weight * c.rtt_ms,
            prefill_ms=c.prefill_ms_per_token * c.uncached_tokens * stalled,
            queue_ms=c.prefill_ms_per_token * self.queue_weight * c.pending_prefill_tokens,
            decode_ms=c.decode_ms_per_token
            * c.output_tokens
            * (1 + self.batch_weight * c.batch_slowdown * c.inflight_requests),
            success_probability=c.success_probability,
            attempts=c.attempts,
            retry_penalty=self.retry_penalty,
        )
