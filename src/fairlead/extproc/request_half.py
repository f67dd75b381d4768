"""The request's messages: headers, the parts of the body, trailers.

Every body is read, as any may name a model or carry what must be stripped (SGLang generates at a PUT too), but for
those of methods whose body no engine reads; these are picked on their headers. A short body is read and picked at once.
The replies to a long one, and to a request that waits in the queue, come later.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fairlead.api import headers as names
from fairlead.api import refusals
from fairlead.api.paths import GENERATION_PATHS, plain_path
from fairlead.edge.grpc.reading import Part
from fairlead.extproc import headers as h
from fairlead.extproc import replies
from fairlead.extproc.body import Body, body_of
from fairlead.extproc.body_reader import MOST_READ_S, BodyReader, ReaderLostError
from fairlead.extproc.exchange import Exchange, Replies
from fairlead.extproc.models import models_answer
from fairlead.extproc.pb.ext_proc_pb2 import BUFFERED, FULL_DUPLEX_STREAMED, ProcessingRequest
from fairlead.extproc.pick import Pick, Prepared, Refused, prepare, question, read_here, read_inline
from fairlead.extproc.prefilling import MOST_PREFILL_S, prefilled
from fairlead.extproc.queued import join_queue, must_wait
from fairlead.extproc.rated import paid
from fairlead.extproc.reading import INLINE_BYTES
from fairlead.extproc.request import HttpRequest
from fairlead.extproc.routed import begun, place_counted, routed_unread

if TYPE_CHECKING:
    import asyncio

OPEN_PATHS: Final = frozenset({"/health", "/ping"})  # without a key
_MOST_WAITING_S: Final = 60.0
_MARGIN_S: Final = 5.0  # by which Envoy waits longer than the queue holds a request: our answer must be the first
_UNREAD_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b""})  # `gateway.routes` agrees
_ASKING: Final = frozenset({b"GET", b"HEAD"})  # else an engine answers, that it deletes no model
_NO_BODY: Final = refusals.malformed("The request has no body; send JSON", None)


def on_headers(exchange: Exchange, message: ProcessingRequest) -> Replies:
    body_mode = exchange.read_modes(message)
    services = exchange.services
    wanted = h.wanted_of_request(
        services.session_headers, services.tenant_header, services.inner_headers, services.waiting.headers
    )
    headers = exchange.headers = h.read(message.request_headers.headers, wanted)
    if services.clients.path is not None and not may_ask(exchange):
        return exchange.refuse(refusals.unknown_client())
    exchange.subset = h.subset_hint(message)
    if services.config.gateway.test_endpoint_selection:
        selected = h.test_selection(headers, services.router.pool.by_address)
        if selected is not None:
            exchange.subset, exchange.is_test = selected, True
    exchange.request_id = headers.get(names.REQUEST_ID) or uuid.uuid4().hex.encode()
    path = headers.get(b":path", b"").decode("latin-1")
    method, has_ended = headers.get(b":method", b""), message.request_headers.end_of_stream
    if method in _ASKING and (answer := models_answer(path, services.router.pool)) is not None:
        return exchange.refuse(answer)
    if method not in _UNREAD_METHODS and body_mode in (BUFFERED, FULL_DUPLEX_STREAMED):
        exchange.path = plain_path(path)
        if not has_ended:
            exchange.request_phase = "collecting"
            return () if exchange.request_duplex else (replies.REQUEST_HEADERS_OF_A_BODY,)
        if method == b"POST" and exchange.path in GENERATION_PATHS:
            return exchange.refuse(_NO_BODY)
    return routed_unread(exchange, path, has_ended=has_ended)


def may_ask(exchange: Exchange) -> bool:
    """Whether its client is known, or it asks what load balancers ask."""
    headers = exchange.headers
    if exchange.services.clients.allow(headers):
        return True
    exchange.request_id = headers.get(names.REQUEST_ID, b"")
    return headers.get(b":method") == b"GET" and plain_path(headers.get(b":path", b"").decode("latin-1")) in OPEN_PATHS


def on_body(exchange: Exchange, message: ProcessingRequest) -> Replies:
    part = message.request_body
    if exchange.request_phase == "collecting":
        return collect(exchange, message, (part.body,), has_ended=part.end_of_stream)
    if exchange.request_phase == "refused":
        return () if exchange.request_duplex else (replies.REQUEST_BODY,)
    if part.end_of_stream:
        exchange.request_phase = "over"
    if exchange.request_duplex:
        return replies.streamed_request_body(part.body, end_of_stream=part.end_of_stream)
    return (replies.REQUEST_BODY,)


def on_trailers(exchange: Exchange, message: ProcessingRequest) -> Replies:
    if exchange.request_phase == "collecting":
        if exchange.request_duplex:
            return _pick(exchange, message, end_of_stream=False)
        if exchange.path in GENERATION_PATHS:
            return exchange.refuse(_NO_BODY)
    if exchange.request_phase != "refused":
        exchange.request_phase = "over"
    return (replies.REQUEST_TRAILERS,)


def collect(
    exchange: Exchange, message: ProcessingRequest | None, pieces: Sequence[Part], *, has_ended: bool
) -> Replies:
    """`message` is None where it has nothing but the pieces of the body."""
    services = exchange.services
    exchange.body += pieces  # before anything that could go wrong
    part_bytes = sum(map(len, pieces))
    exchange.body_bytes += part_bytes
    if exchange.body_bytes > services.max_body_bytes:
        return exchange.refuse(refusals.too_large(services.max_body_bytes))
    held = services.held.take(part_bytes, len(pieces), exchange, services.clock_s)
    if not held:
        return exchange.refuse(refusals.too_many_bodies())
    exchange.held_bytes += held
    # A buffered body comes in one message, and that has no end of stream where the request has trailers.
    if has_ended or not exchange.request_duplex:
        return _pick(exchange, message, end_of_stream=True)
    if exchange.send is not None:
        services.held.comes_in(exchange, services.clock_s)
    if message is not None:
        _read_subset(exchange, message)
    return ()


def _read_subset(exchange: Exchange, message: ProcessingRequest) -> None:
    """What the gateway allows may come with the headers, the body or both; what came last counts."""
    hint = h.subset_hint(message)
    if hint is not None and not exchange.is_test:
        exchange.subset = hint


def _pick(exchange: Exchange, message: ProcessingRequest | None, *, end_of_stream: bool) -> Replies:
    """The pick, here where the body is short; else the replies come later."""
    services = exchange.services
    services.held.is_here(exchange)
    whole_s = services.clock_s()
    if message is not None:
        _read_subset(exchange, message)
    body = body_of(exchange.body, INLINE_BYTES)
    exchange.trace = services.tracer.begin()
    request = HttpRequest(
        exchange.path,
        exchange.headers,
        exchange.request_id,
        body,
        exchange.subset,
        can_hold=not exchange.request_duplex,
        trace=exchange.trace,
    )
    read = read_inline(request)
    if read is None and services.reader is not None:
        exchange.request_phase = "reading"
        exchange.held = _pick_later(exchange, services.reader, request, whole_s, end_of_stream=end_of_stream)
        return _wait(exchange, _MOST_WAITING_S + MOST_READ_S)
    read = read_here(services, request) if read is None else read
    prepared = _paid(exchange, prepare(services, request, read, whole_s))
    if (
        isinstance(prepared, Prepared)
        and services.waiting.is_on
        and (terms := must_wait(exchange, prepared)) is not None
    ):
        exchange.request_phase = "reading"
        decided = join_queue(exchange, prepared, terms, end_of_stream=end_of_stream)
        if not decided.done():
            exchange.held = _decided_later(exchange, decided, body, end_of_stream=end_of_stream)
            return _wait(exchange, _MARGIN_S)
        began = decided.result()
    else:
        began = begun(exchange, place_counted(exchange, prepared), body, end_of_stream=end_of_stream)
    if not isinstance(began, Pick):
        return began
    exchange.request_phase = "reading"
    exchange.held = _prefilled(exchange, began, body, end_of_stream=end_of_stream)
    return _wait(exchange, _MARGIN_S)


async def _pick_later(
    exchange: Exchange, reader: BodyReader, request: HttpRequest, whole_s: float, *, end_of_stream: bool
) -> Replies:
    """The replies to a long body, once it has been read; none if the request is not ours any more."""
    services = exchange.services
    try:
        read = await reader.read(request.body, question(services, request))
        if exchange.request_phase != "reading":
            return ()
        prepared = _paid(exchange, prepare(services, request, read, whole_s))
        if isinstance(prepared, Prepared) and services.waiting.is_on and (terms := must_wait(exchange, prepared)):
            began = await join_queue(exchange, prepared, terms, end_of_stream=end_of_stream)
        else:
            began = begun(exchange, place_counted(exchange, prepared), request.body, end_of_stream=end_of_stream)
        if not isinstance(began, Pick):
            return began
        return await prefilled(exchange, began, request.body, end_of_stream=end_of_stream)
    except ReaderLostError:
        pass
    except Exception:  # an internal error; the body may carry anything, so it must not pass unread
        exchange.report_fault()
    return _given_up(exchange)


def _paid(exchange: Exchange, prepared: Prepared | Refused) -> Prepared | Refused:
    if not exchange.services.rates.is_on or isinstance(prepared, Refused):
        return prepared
    return paid(exchange, prepared.asked.name, prepared.asked.route, prepared.facts) or prepared


def _wait(exchange: Exchange, most_s: float) -> Replies:
    """The reply that makes Envoy wait, once for this message; in full duplex Envoy waits without being asked."""
    if exchange.request_duplex:
        return ()
    if exchange.services.router.pool.prefilling:
        most_s += MOST_PREFILL_S
    return (replies.wait(most_s + exchange.services.waiting.longest_wait_s),)


async def _decided_later(
    exchange: Exchange, decided: asyncio.Future[Replies | Pick], body: Body, *, end_of_stream: bool
) -> Replies:
    began = await decided
    if not isinstance(began, Pick):
        return began
    return await _prefilled(exchange, began, body, end_of_stream=end_of_stream)


async def _prefilled(exchange: Exchange, picked: Pick, body: Body, *, end_of_stream: bool) -> Replies:
    try:
        return await prefilled(exchange, picked, body, end_of_stream=end_of_stream)
    except Exception:  # an internal error
        exchange.report_fault()
        return _given_up(exchange)


def _given_up(exchange: Exchange) -> Replies:
    exchange.withdraw()
    return exchange.refuse(refusals.unreadable()) if exchange.request_phase == "reading" else ()
