"""fairlead: the default policy. Network, cache, queue and decoding in one cost, divided by the chance of being right.

cost = (rtt_weight * rtt + fixed
        + prefill_ms_per_token * work * (1 + evict_weight + crowd_weight * (least in-flight of all candidates + to come)
                                           + stall_weight * decoding + behind_weight * waiting)
        + prefill_ms_per_token * queue_weight * (pending + strangers)
        + adapter_weight * (wait for a slot + load, which counts as prefill that takes as long)
        + decode_ms_per_token * (output + batch_weight * batch_slowdown * in-flight
                                          * (output + max(0, least_answer_tokens - usual answer)))
       ) / Q * penalty^attempts
`work` is the uncached tokens with what attention to all before them adds (`core.prefill_work`), as are those pending.
What a request costs an engine whatever its length (`fixed`) is learned with the speeds and counts once, for its own
request: it is time in the server and between steps, which others do not wait for.

A prefill stalls the requests that decode there, and delays those that come behind it before the engine is idle again:
as many as stand before it, where arrivals keep pace; those whose prompt another endpoint still computes do not.
Wherever it goes, it also delays what the least loaded endpoint has, and those to come before the pool is idle again
(`core.congestion`): a busy pool prefers cached prefixes more. In a full cache each token that is computed evicts
another, and `evict_weight` is the chance that somebody asks for that one again. An answer is slowed by the others in
its batch and slows each of them as much: that is counted twice. Where answers are short, a request is in flight for its
prompt's sake, so it counts as if it had `least_answer_tokens`. Every term is in milliseconds, so a weight of 1 is the
physical one. Sources: GORGO (network, cache, queue), LAAR (Q).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from msgspec import Meta

from fairlead.core.candidates import Candidate, Standing
from fairlead.core.cost import CostTerms, Prices, adapter_ms, cost_factor, latency_terms
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.core.ranking import in_order
from fairlead.policies.registry import Rule, register


@register("fairlead")
class Fairlead(Rule, frozen=True):
    rtt_weight: Annotated[float, Meta(ge=0)] = 1.0
    queue_weight: Annotated[float, Meta(ge=0)] = 1.0
    behind_weight: Annotated[float, Meta(ge=0)] = 2.0  # this one and the next three chosen by replays: docs/weights.md
    crowd_weight: Annotated[float, Meta(ge=0)] = 1.0
    stall_weight: Annotated[float, Meta(ge=0)] = 0.2
    evict_weight: Annotated[float, Meta(ge=0)] = 0.0
    batch_weight: Annotated[float, Meta(ge=0)] = 2.0
    least_answer_tokens: Annotated[float, Meta(ge=0)] = 128.0
    adapter_weight: Annotated[float, Meta(ge=0)] = 1.0  # of loading an adapter, for requests that name one
    tie_ms: Annotated[float, Meta(ge=0)] = 2.0  # costs this close, or within the spread of measured round trips, tie
    retry_penalty: Annotated[float, Meta(ge=1, le=1e6)] = 1e6  # a model that failed at temperature 0 fails again

    def prices(self, at: Candidate | Standing) -> Prices:
        """What each unit costs at one candidate, in ms. The formula is written only here."""
        prefill_ms, decode_ms = at.prefill_ms_per_token, at.decode_ms_per_token
        alongside = self.batch_weight * at.batch_slowdown * at.inflight_requests
        waiting = max(0, at.inflight_requests - at.decoding_requests - at.awaited_requests)
        pending = at.pending_prefill_tokens + at.pending_attention_tokens
        queue_ms = prefill_ms * self.queue_weight * (pending + at.strangers_tokens)
        if at.answer_tokens < self.least_answer_tokens:
            queue_ms += decode_ms * alongside * (self.least_answer_tokens - at.answer_tokens)
        return (
            self.rtt_weight * at.rtt_ms,
            at.fixed_ms,
            queue_ms,
            prefill_ms
            * (1 + self.evict_weight + self.stall_weight * at.decoding_requests + self.behind_weight * waiting),
            prefill_ms * self.crowd_weight,
            decode_ms * (1 + alongside),
            self.rtt_weight * at.rtt_spread_ms,
        )

    def latency_terms(self, c: Candidate) -> tuple[float, float, float, float, float]:
        """Network, fixed, prefill, queue and decoding at one candidate, in ms."""
        return latency_terms(self.prices(c), c.work_tokens, c.delayed_requests, c.output_tokens)

    def adapter_ms(self, c: Candidate) -> float:
        """Of a request for an adapter that has no slot at this candidate; 0 for any other."""
        if c.adapter is None:
            return 0.0
        _, _, _, prefill, contention, _, _ = self.prices(c)
        return self.adapter_weight * adapter_ms(c.adapter, prefill + c.delayed_requests * contention)

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        prices, penalty, delayed = self.prices, self.retry_penalty, candidates[0].delayed_requests
        costs_ms, spreads_ms = [], []
        for c in candidates:  # added up as in `core.cost.costs_ms`
            network, fixed, queue, prefill, contention, decode, spread = prices(c)
            once = network + fixed + queue
            if c.adapter is not None:
                once += self.adapter_ms(c)
            work = c.uncached_tokens + c.attention_tokens
            latency = once + work * (prefill + delayed * contention) + c.output_tokens * decode
            costs_ms.append(latency * cost_factor(c.success_probability, penalty, c.attempts))
            spreads_ms.append(spread / c.success_probability)
        order = in_order(candidates, costs_ms, tie_width=self.tie_ms, spreads=spreads_ms if any(spreads_ms) else None)
        return Ranking(order, "affinity" if order[0].candidate.is_affine else "cost")

    def explain(self, candidate: Candidate) -> CostTerms:
        rtt_ms, fixed_ms, prefill_ms, queue_ms, decode_ms = self.latency_terms(candidate)
        return CostTerms(
            rtt_ms,
            prefill_ms,
            queue_ms,
            decode_ms,
            candidate.success_probability,
            candidate.attempts,
            self.retry_penalty,
            self.adapter_ms(candidate),
            fixed_ms,
        )
