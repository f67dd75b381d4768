"""The spans of one request: the whole of it, the decision with the terms of its cost, the engine, and its parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from fairlead.core.moves import describe_move
from fairlead.core.policy import Ended
from fairlead.core.trace import Part, Value
from fairlead.tracing.context import TraceContext

_SHOWN_BYTES: Final = 64
_FAILED_CODE: Final = 500


def spans(ended: Ended, own: TraceContext, parent_id: bytes, unix_s: float, parts: Sequence[Part] = ()) -> list[Span]:
    """`own` names the span of the whole; `unix_s` is the Unix time at which the router's clock was 0.

    Follows the GenAI conventions where they have names. Source: github.com/open-telemetry/semantic-conventions-genai,
    docs/gen-ai.
    """
    decision, outcome, trace_id = ended.decision, ended.outcome, own.trace_id
    whole = _span("fairlead.request", trace_id, parent_id, _request(ended))
    whole.span_id = own.span_id
    decide = _span("fairlead.decide", trace_id, whole.span_id, _decision(ended))
    engine = _span("fairlead.engine", trace_id, whole.span_id, {"server.address": ended.address})
    begin_ns, decided_ns, end_ns = (_ns(unix_s + at_s) for at_s in (ended.begun_s, decision.decided_s, ended.ended_s))
    for span, start, end in ((whole, begin_ns, end_ns), (decide, begin_ns, decided_ns), (engine, decided_ns, end_ns)):
        span.start_time_unix_nano, span.end_time_unix_nano = start, max(start, end)
    if outcome.first_token_ms is not None:
        at = _ns(unix_s + decision.decided_s + outcome.first_token_ms / 1e3)
        engine.events.append(Span.Event(name="first token", time_unix_nano=at))
    if outcome.code >= _FAILED_CODE:
        for span in (whole, engine):
            span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR))
            span.attributes.append(_attribute("error.type", str(outcome.code)))
    made = [whole, decide, engine, *(part_span(part, own, unix_s) for part in parts)]
    if ended.waited_ms:
        wait = Part("fairlead.wait", decision.decided_s - ended.waited_ms / 1e3, decision.decided_s)
        made.append(part_span(wait, own._replace(span_id=decide.span_id), unix_s))
    return made


def part_span(part: Part, parent: TraceContext, unix_s: float) -> Span:
    span = _span(part.name, parent.trace_id, parent.span_id, part.attributes)
    span.start_time_unix_nano, span.end_time_unix_nano = _ns(unix_s + part.began_s), _ns(unix_s + part.ended_s)
    if part.error:
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR))
        span.attributes.append(_attribute("error.type", part.error))
    return span


def _request(ended: Ended) -> Mapping[str, Value | None]:
    outcome = ended.outcome
    return {
        "gen_ai.request.model": (ended.request.model or "")[:_SHOWN_BYTES],
        "gen_ai.response.model": ended.decision.model,
        "gen_ai.usage.input_tokens": outcome.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": outcome.cached_tokens,
        "gen_ai.usage.output_tokens": outcome.completion_tokens,
        "gen_ai.response.time_to_first_chunk": None if outcome.first_token_ms is None else outcome.first_token_ms / 1e3,
        "http.response.status_code": outcome.code,
        "fairlead.request_id": ended.request_id[:_SHOWN_BYTES].decode("latin-1"),
    }


def _decision(ended: Ended) -> Mapping[str, Value | None]:
    decision, request = ended.decision, ended.request
    shown: dict[str, Value | None] = {
        "fairlead.policy": type(decision.policy).__name__,
        "fairlead.why": decision.why,
        "fairlead.considered": decision.considered,
        "fairlead.attempted": len(request.attempted),
        "fairlead.prompt_tokens": request.tokens,
        "fairlead.cached_tokens": decision.cached_tokens,
        "fairlead.endpoints": ",".join(decision.addresses),
        "fairlead.migration": describe_move(decision.migration) or None,
        "fairlead.waited_ms": ended.waited_ms,
    }
    terms = decision.terms(decision.best[0]) if decision.best else None
    if terms is not None:
        shown |= {
            "fairlead.cost.rtt_ms": terms.rtt_ms,
            "fairlead.cost.fixed_ms": terms.fixed_ms,
            "fairlead.cost.prefill_ms": terms.prefill_ms,
            "fairlead.cost.queue_ms": terms.queue_ms,
            "fairlead.cost.decode_ms": terms.decode_ms,
            "fairlead.cost.adapter_ms": terms.adapter_ms,
            "fairlead.cost.success_probability": terms.success_probability,
            "fairlead.cost.total_ms": terms.total_ms(),
        }
    return shown


def _span(name: str, trace_id: bytes, parent_id: bytes, attributes: Mapping[str, Value | None]) -> Span:
    shown = [_attribute(key, value) for key, value in attributes.items() if value is not None]
    span_id = os.urandom(8)
    kind = Span.SPAN_KIND_INTERNAL
    return Span(
        name=name, trace_id=trace_id, span_id=span_id, parent_span_id=parent_id, kind=kind, attributes=shown, flags=1
    )


def _attribute(key: str, value: Value) -> KeyValue:
    if isinstance(value, str):
        return KeyValue(key=key, value=AnyValue(string_value=value))
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    return KeyValue(key=key, value=AnyValue(double_value=value))


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
