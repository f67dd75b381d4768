"""Service-level objectives of a request, and what a client should see at an endpoint: physical times, without weights.

A policy's cost weighs a request's time against what it does to others; an objective is about this request alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from fairlead.core.adapter_slots import AdapterNeed
from fairlead.core.candidates import NO_NEEDS, Candidate
from fairlead.core.cost import adapter_ms
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.objective import Slo
from fairlead.core.observation import STEPS_BEFORE
from fairlead.core.prefill_work import work_tokens


class Met(msgspec.Struct, frozen=True, gc=False):
    """Endpoints that should meet an objective, and by how much the nearest of the others misses the first token."""

    endpoints: Sequence[Endpoint]
    late_ms: float


def expected_first_token_ms(at: Candidate) -> float:
    """From the decision to the first token at the client."""
    return _first_token_ms(
        at.rtt_ms + at.fixed_ms,
        at.prefill_ms_per_token * (at.pending_work_tokens + at.strangers_tokens + at.work_tokens),
        expected_pace_ms(at) if at.decoding_requests else 0.0,
    ) + (0.0 if at.adapter is None else adapter_ms(at.adapter, at.prefill_ms_per_token))


def expected_pace_ms(at: Candidate) -> float:
    """Between two tokens, alongside those that decode there; prefills that come later slow it, and are not known."""
    return at.decode_ms_per_token * (1 + at.batch_slowdown * at.decoding_requests)


def pace_ms(endpoint: Endpoint) -> float:
    """As `expected_pace_ms`, of an endpoint."""
    speed = endpoint._speed
    return speed.decode_ms_per_token * (1 + speed.batch_slowdown * endpoint._load.decoding_requests)


def meeting(
    slo: Slo,
    endpoints: Sequence[Endpoint],
    request: RequestFacts,
    cached_tokens: Mapping[str, int],
    needs: Mapping[str, AdapterNeed] = NO_NEEDS,
) -> Met:
    """Which of `endpoints` should meet `slo`, with what each has cached of the prompt and needs for its adapter."""
    met: list[Endpoint] = []
    late_ms = inf
    for endpoint in endpoints:
        speed, load = endpoint._speed, endpoint._load
        decoding, step_ms = load.decoding_requests, pace_ms(endpoint)
        cached, growth = min(cached_tokens.get(endpoint.address, 0), request.tokens), speed.prefill_growth
        waiting = load.pending_work_tokens(growth) + endpoint._strangers.pending_work_tokens(growth)
        prefill_ms = speed.prefill_ms_per_token * (waiting + work_tokens(request.tokens - cached, cached, growth))
        first_ms = _first_token_ms(endpoint._rtt_ms + speed.fixed_ms, prefill_ms, step_ms if decoding else 0.0)
        if needs and (need := needs.get(endpoint.address)) is not None:
            first_ms += adapter_ms(need, speed.prefill_ms_per_token)
        if first_ms <= slo.ttft_ms and step_ms <= slo.tpot_ms:
            met.append(endpoint)
        late_ms = min(late_ms, max(0.0, first_ms - slo.ttft_ms))
    return Met(met, 0.0 if late_ms == inf else late_ms)


def least_first_token_ms(
    endpoints: Sequence[Endpoint], request: RequestFacts, cached_tokens: Mapping[str, int]
) -> float:
    """At whichever of `endpoints` it would come first if they were idle; 0 without any."""
    return min(
        (
            e._rtt_ms + e._speed.fixed_ms + e._speed.prefill_ms(request.tokens, cached_tokens.get(e.address, 0))
            for e in endpoints
        ),
        default=0.0,
    )


def _first_token_ms(fixed_ms: float, prefill_ms: float, step_ms: float) -> float:
    return fixed_ms + prefill_ms + STEPS_BEFORE * step_ms
