"""The response's messages: headers, the parts of the body, trailers.

A sample of answers is observed, from which the engines' speed is learned; the answer of a cascade's first model is held
for a judge. Every other answer passes as it is.
"""

from __future__ import annotations

from typing import Final

from fairlead.api import headers as names
from fairlead.api.answer_model import MOST_WHOLE_BYTES, AnswerModel
from fairlead.api.stream_error import stream_error
from fairlead.core.in_flight import ABORTED_CODE
from fairlead.extproc import headers as h
from fairlead.extproc import replies
from fairlead.extproc.cascade import HELD_HEADERS, Held, wait_for
from fairlead.extproc.exchange import Exchange, Replies
from fairlead.extproc.observed import EVENT_STREAM, ObservedAnswer
from fairlead.extproc.pb.ext_proc_pb2 import ProcessingRequest
from fairlead.extproc.phases import UNSETTLED
from fairlead.extproc.rated import limit_headers

_HTTP_OK: Final = 200
_UNAVAILABLE: Final = 503
_MOST_LENGTH_DIGITS: Final = 9


def on_headers(exchange: Exchange, message: ProcessingRequest) -> Replies:
    if exchange.request_phase in UNSETTLED:  # Envoy's own answer; in `start` it is the first message
        if exchange.request_phase == "start":
            exchange.read_modes(message)
        exchange.forget_body()
        exchange.leave_queue()
        exchange.request_phase = "over"
    in_flight, has_ended = exchange.in_flight, message.response_headers.end_of_stream
    exchange.response_phase = "over" if has_ended else "passing"
    if in_flight is None:
        return (replies.RESPONSE_HEADERS,)
    services, decision, picked = exchange.services, in_flight.decision, exchange.pick
    code, content_type = h.status_and_type(message.response_headers.headers)
    served = h.served_address(message)
    address = served or decision.addresses[0]
    in_one_piece = not content_type.startswith(EVENT_STREAM)
    unanswered = code == _UNAVAILABLE and h.is_unanswered(message.response_headers.headers)
    if served is None and code == _UNAVAILABLE and services.reports_served is not False:
        in_flight.unserved(code)  # Envoy says who answered, if anybody did: it has found no engine healthy yet
    else:
        if services.reports_served is None or served is not None:
            services.reports_served = served is not None
        in_flight.served(
            address,
            code or ABORTED_CODE,
            services.clock_s(),
            in_one_piece=in_one_piece,
            unanswered=unanswered,
            attempts=exchange.attempts,
        )
        if not in_flight.from_elsewhere:
            exchange.leave_prefill()
    limits = limit_headers(exchange)
    if has_ended:
        exchange.end()
    why = decision.why if address == decision.addresses[0] else "fallback"
    reuse = b"" if picked is None else picked.reuse
    shown = address if services.config.gateway.show_endpoint else ""
    observes = False
    if picked is not None and code == _HTTP_OK and not has_ended:
        if picked.entry is not None and services.cascades.holds(
            picked.entry, h.read(message.response_headers.headers, HELD_HEADERS)
        ):
            exchange.response_phase = "held"
            held = replies.held_response_headers(decision.model, shown, why, exchange.request_id, reuse)
            return (replies.with_headers(held, limits) if limits else held,)
        if services.budget.open(in_flight.address, services.clock_s()):  # a sample, as far as the budget reaches
            exchange.observed = ObservedAnswer(picked, content_type, services.budget)
            observes = not exchange.response_duplex
            if not in_one_piece:
                in_flight.watch()
        if not in_one_piece:
            exchange.may_be_evicted()
            exchange.may_be_refusal = True
            # Our own Envoy has held it for its first event; another gateway is to show it, to its end.
            endpoint = None if services.recorder.held_streams else services.router.pool.by_address.get(address)
            may_refuse = endpoint is not None and endpoint.may_be_full
            observes = not exchange.response_duplex and (observes or may_refuse)
        if picked.renamed and picked.entry is None and _sees_answers(exchange):
            exchange.answer_model = _answer_model(
                picked.renamed, h.read(message.response_headers.headers, HELD_HEADERS)
            )
            observes = not exchange.response_duplex and (observes or exchange.answer_model is not None)
    reply = replies.response_headers(decision.model, shown, why, exchange.request_id, observe=observes, reuse=reuse)
    if limits:
        reply = replies.with_headers(reply, limits)
    if exchange.answer_model is not None:
        reply = replies.without_header(reply, "content-length")  # its body will change
    if unanswered:
        reply = replies.without_header(reply, names.UNANSWERED.decode())
    if services.config.gateway.test_endpoint_selection:
        reply = replies.with_served_endpoint(reply, address)
    return (reply,)


def on_body(exchange: Exchange, message: ProcessingRequest) -> Replies:
    part = message.response_body
    if exchange.response_phase == "held":
        return _judge(exchange, part.body)
    if exchange.may_be_refusal and part.body:
        exchange.may_be_refusal = False
        _read_refusal(exchange, part.body)
    if exchange.observed is not None:
        _observe(exchange, exchange.observed, part.body, has_ended=part.end_of_stream)
    if part.end_of_stream:
        exchange.response_phase = "over"
        exchange.end()
    body = part.body
    if exchange.answer_model is not None:
        body = exchange.answer_model.feed(body, has_ended=part.end_of_stream)
    if exchange.response_duplex:
        if part.body and not body and not part.end_of_stream:
            return ()  # it comes with a later part
        return replies.streamed_response_body(body, end_of_stream=part.end_of_stream)
    return (replies.RESPONSE_BODY if body == part.body else replies.changed_response_body(body),)


def on_trailers(exchange: Exchange, _: ProcessingRequest) -> Replies:
    exchange.response_phase = "over"
    exchange.end()
    return (replies.RESPONSE_TRAILERS,)


def _sees_answers(exchange: Exchange) -> bool:
    """Whether the client's model is wanted in answers, and Envoy can show them: full duplex takes no orders."""
    if exchange.services.config.gateway.answer_model != "asked":
        return False
    return exchange.response_duplex or not exchange.request_duplex


def _answer_model(model: str, headers: h.Headers) -> AnswerModel | None:
    """None for an answer that is not JSON, is compressed, or may be too long to be held."""
    if headers.get(b"content-encoding", b"identity") != b"identity":
        return None
    kind, length = headers.get(b"content-type", b""), headers.get(b"content-length", b"")
    if kind.startswith(EVENT_STREAM):
        return AnswerModel(model, events=True)
    if not kind.startswith(b"application/json") or not length.isdigit() or len(length) > _MOST_LENGTH_DIGITS:
        return None
    return AnswerModel(model, events=False, length=int(length)) if int(length) <= MOST_WHOLE_BYTES else None


def _read_refusal(exchange: Exchange, first_part: bytes) -> None:
    """The client has the headers already, so another engine cannot be asked: it counts as what it is."""
    error, in_flight = stream_error(first_part), exchange.in_flight
    if error is None or in_flight is None:
        return
    in_flight.refused_in_stream(error.status, exchange.services.clock_s())
    exchange.stop_observing()


def _observe(exchange: Exchange, observed: ObservedAnswer, part: bytes, *, has_ended: bool) -> None:
    """Learn from an answer about its engine. An internal error here costs the observation, not the answer."""
    services, now_s = exchange.services, exchange.services.clock_s()
    try:
        observed.part(part, now_s)
        if has_ended and _stood_still(exchange, now_s):
            exchange.stop_observing("stalled")
        elif has_ended:
            exchange.observed, exchange.seen_events = None, observed.events
            exchange.seen = seen = observed.ended(now_s)
            services.learner.observe(seen, services.router.pool)
            services.recorder.observed(seen)
            if exchange.in_flight is not None:
                services.calibration.observed(exchange.in_flight.decision, seen)
    except Exception:
        observed.cut()
        exchange.observed = None
        exchange.report_fault()


def _stood_still(exchange: Exchange, now_s: float) -> bool:
    """Whether this process or the engine did, for a while since the request was sent."""
    in_flight = exchange.in_flight
    if in_flight is None:
        return False
    endpoint, sent_s = in_flight.endpoint, in_flight.sent_s
    was_away = endpoint is not None and endpoint.health.away_s >= sent_s
    return was_away or exchange.services.stalls.any_since(sent_s, now_s)


def _judge(exchange: Exchange, body: bytes) -> Replies:
    """The first model is done, whatever becomes of its answer; the judge may take some time."""
    picked = exchange.pick
    assert picked is not None
    assert picked.entry is not None
    exchange.response_phase = "judged"
    exchange.end()
    held = Held(picked.entry, exchange.headers, exchange.request_id, body, exchange.started_s, exchange.trace)
    exchange.held = _judged(exchange, held)
    return (wait_for(held),)


async def _judged(exchange: Exchange, held: Held) -> Replies:
    try:
        return (await exchange.services.cascades.settle(held),)
    except Exception:  # an internal error must not fail the client's answer
        exchange.report_fault()
        return (replies.RESPONSE_BODY,)
