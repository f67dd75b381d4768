"""Candidates: endpoints as they stand for one request, with all that a policy may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from fairlead.core.adapter_slots import AdapterNeed
from fairlead.core.endpoint import USUAL_ANSWER_TOKENS, USUAL_SLOWDOWN, Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.prefill_work import attention_tokens

NO_NEEDS: Final[Mapping[str, AdapterNeed]] = MappingProxyType({})


class Standing(msgspec.Struct, frozen=True, gc=False):
    """An endpoint as it stands, whatever the request: what a policy with `Prices` makes these of. See `Candidate`."""

    rtt_ms: float
    inflight_requests: int
    pending_prefill_tokens: int
    pending_attention_tokens: float
    prefill_ms_per_token: float
    decode_ms_per_token: float
    batch_slowdown: float
    rtt_spread_ms: float
    decoding_requests: int
    answer_tokens: float
    fixed_ms: float
    strangers_tokens: float
    awaited_requests: int


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An endpoint as it stands for one request. Load is that of all sidecars together."""

    address: str
    model: str
    inflight_requests: int
    inflight_prompt_tokens: int
    pending_prefill_tokens: int
    cached_tokens: int  # of this request's prompt, at this endpoint, as far as the router knows
    uncached_tokens: int
    rtt_ms: float
    prefill_ms_per_token: float
    decode_ms_per_token: float
    success_probability: float
    attempts: int  # how often this model has already answered this request wrongly
    last_chosen: int
    is_affine: bool = False  # the session's affinity target
    decoding_requests: int = 0
    running_requests: int = 0  # as the engine reports; 0 where it does not
    waiting_requests: int = 0
    kv_usage: float = 0.0
    used_tokens: int = 0  # in the KV cache, as the engine reports
    delayed_requests: float = 0.0  # wherever it goes: those at the least loaded, strangers' too, and those to come
    output_tokens: float = USUAL_ANSWER_TOKENS  # expected of the answer here
    batch_slowdown: float = USUAL_SLOWDOWN
    rtt_spread_ms: float = 0.0  # by which measurements of the round trip differ
    answer_tokens: float = USUAL_ANSWER_TOKENS  # of this model's answers on average, whatever this request allows
    adapter: AdapterNeed | None = None  # None: it names none, or has it loaded
    fixed_ms: float = 0.0  # of a request here, whatever its length
    strangers_tokens: float = 0  # work of requests that no sidecar we know of sent, which wait for prefill
    attention_tokens: float = 0.0  # what attention adds to the work of the uncached tokens: see `core.prefill_work`
    pending_attention_tokens: float = 0.0  # and to that of those which wait
    awaited_requests: int = 0  # of those in flight, the ones whose prompt another endpoint still computes

    @property
    def work_tokens(self) -> float:
        """What prefill of this request takes, in tokens at the beginning of a prompt."""
        return self.uncached_tokens + self.attention_tokens

    @property
    def pending_work_tokens(self) -> float:
        """What waits for prefill, in the same."""
        return self.pending_prefill_tokens + self.pending_attention_tokens


def fitting(endpoints: Sequence[Endpoint], request: RequestFacts) -> Sequence[Endpoint]:
    """Those whose context length fits the prompt; all of them if none seems to, as the estimate may be wrong."""
    tokens = request.tokens
    return [e for e in endpoints if e._max_model_len is None or tokens <= e._max_model_len] or endpoints


def least_inflight(endpoints: Sequence[Endpoint]) -> int:
    """Requests in flight at the least loaded of them."""
    return min([e._load.inflight_requests + e._strangers.inflight_requests for e in endpoints], default=0)


def candidates(
    endpoints: Sequence[Endpoint],
    request: RequestFacts,
    cached_tokens: Mapping[str, int],
    target: str | None = None,
    delayed_requests: float | None = None,
    needs: Mapping[str, AdapterNeed] = NO_NEEDS,
) -> list[Candidate]:
    """One candidate for each endpoint, in the same order; `cached_tokens` by address, absent is 0.

    `target` is the session's affinity target, `delayed_requests` how many its prefill delays wherever it goes: those at
    the least loaded of `endpoints`, if nothing else is given. `needs` are those of the adapter that it names.
    """
    language, bucket, tokens, attempted = request.language, request.bucket, request.tokens, request.attempted
    limit, name = request.max_output_tokens, request.name
    delayed = least_inflight(endpoints) if delayed_requests is None else delayed_requests
    options = []
    capability, success_probability = None, 1.0
    for e in endpoints:
        cached = min(cached_tokens.get(e.address, 0), tokens) if cached_tokens else 0
        load, report, speed, others = e._load, e.report, e._speed, e._strangers
        growth = speed.prefill_growth
        answer_tokens = speed.answer_tokens
        own = e._spec.capability if not name else e._spec.capability_of(name)
        if own is not capability:  # those of one model share it
            capability = own
            success_probability = capability.success_probability(language, bucket, tokens, request.task)
        kv_usage = report.kv_usage or 0.0
        options.append(
            Candidate(  # by position: names would take 150 us more at 64 endpoints
                e.address,
                e.model,
                load.inflight_requests,
                load.inflight_prompt_tokens,
                load.pending_prefill_tokens,
                cached,
                tokens - cached,
                e._rtt_ms,
                speed.prefill_ms_per_token,
                speed.decode_ms_per_token,
                success_probability,
                attempted.count(name or e.model) if attempted else 0,
                e.last_chosen,
                e.address == target,
                load.decoding_requests,
                report.running_requests or 0,
                report.waiting_requests or 0,
                kv_usage,
                int(kv_usage * report.kv_capacity_tokens) if kv_usage and report.kv_capacity_tokens else 0,
                delayed,
                answer_tokens if limit is None or answer_tokens < limit else limit,
                speed.batch_slowdown,
                e._rtt_spread_ms,
                answer_tokens,
                needs.get(e.address) if needs else None,
                speed.fixed_ms,
                others.pending_work_tokens(growth) if growth else others.pending_prefill_tokens,
                attention_tokens(tokens - cached, cached, growth) if growth else 0.0,
                growth * load.pending_attended_tokens,
                load.awaited_requests,
            )
        )
    return options
