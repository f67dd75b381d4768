"""The replies that give a request its endpoint."""

from __future__ import annotations

from itertools import chain, cycle, islice
from typing import Final

from fairlead.api import headers as names
from fairlead.api import refusals
from fairlead.api.paths import query_model, with_query_model
from fairlead.core.endpoint import BY_PROXY
from fairlead.core.facts import unread_facts
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.extproc import headers as h
from fairlead.extproc import replies
from fairlead.extproc.body import Body
from fairlead.extproc.exchange import Exchange, Replies
from fairlead.extproc.pb.ext_proc_pb2 import ProcessingMode
from fairlead.extproc.pick import Pick, Prepared, Refused, asked_of, place
from fairlead.extproc.rated import began, paid
from fairlead.extproc.request import HttpRequest

_LOOKING: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})  # what engines answer without any work


def place_counted(exchange: Exchange, prepared: Prepared | Refused, waited_s: float = 0.0) -> Pick | Refused:
    """Its endpoint, after it has waited for so long; what it takes there counts for those that wait."""
    if isinstance(prepared, Refused):
        return prepared
    services = exchange.services
    picked = place(services, prepared, waited_s)
    if isinstance(picked, Pick):
        if services.waiting.is_on:
            exchange.engine_ms = services.admission.began(picked.in_flight)
        if exchange.charge is not None:
            began(exchange, picked.in_flight)
    return picked


def take(exchange: Exchange, picked: Pick) -> None:
    """What it has taken is given back with the exchange from now on."""
    exchange.in_flight, exchange.pick, exchange.route = picked.in_flight, picked, picked.route


def begun(exchange: Exchange, picked: Pick | Refused, body: Body, *, end_of_stream: bool) -> Replies | Pick:
    """The replies to a request that was read; or `picked`, where another endpoint computes its prompt first."""
    if isinstance(picked, Pick) and picked.unsent is not None:
        take(exchange, picked)
        return picked
    return routed(exchange, picked, body, end_of_stream=end_of_stream)


def routed(exchange: Exchange, picked: Pick | Refused, body: Body, *, end_of_stream: bool) -> Replies:
    """A request whose whole body was read goes to the endpoint that was picked."""
    if isinstance(picked, Refused):
        return exchange.refuse(picked.answer, picked.route)
    take(exchange, picked)
    destination, headers = _destination(exchange, picked.in_flight), _own_id(exchange)
    removed = h.forbidden_in(exchange.headers)
    if picked.in_flight.from_elsewhere:
        name, value = _prefill_header(picked.in_flight)
        headers.append((name, value))
        removed = [each for each in removed if each != name.decode()]
    if picked.streams and may_be_refused(exchange, picked.in_flight):
        headers.append((names.FIRST_EVENT, b"1"))
        removed = [each for each in removed if each != names.FIRST_EVENT.decode()]
    made: Replies
    if not picked.in_flight.from_elsewhere:
        exchange.attempts = 1 + exchange.services.router.fallbacks
    if exchange.request_duplex:
        if not end_of_stream:
            exchange.attempts = 1
            headers.append((names.SENT_ONCE, b"1"))
            removed = [each for each in removed if each != names.SENT_ONCE.decode()]
        sent = body if picked.body is None else picked.body
        streamed = replies.streamed_request_body(sent, end_of_stream=end_of_stream)
        trailers = () if end_of_stream else (replies.REQUEST_TRAILERS,)
        made = chain((replies.routed_headers(destination, headers, removed, _shown(exchange)),), streamed, trailers)
    else:
        if picked.entry is not None:
            removed = [*removed, "accept-encoding"]  # what is compressed cannot be judged
            if picked.entry.streams:
                headers.append((names.EVENTS, b"1"))
        if picked.body is not None:
            headers.append((b"content-length", str(len(picked.body)).encode()))
        made = (replies.routed_body(destination, headers, removed, picked.body),)
    exchange.forget_body()
    exchange.request_phase = "settled" if end_of_stream else "over"
    return made


def routed_unread(exchange: Exchange, path: str, *, has_ended: bool) -> Replies:
    """By the headers alone; the query of an upgrade (`/v1/realtime?model=NAME`) may name a model."""
    router, named, now_s = exchange.services.router, query_model(path), exchange.services.clock_s()
    model, route = named, named or ""
    if named:
        request = HttpRequest(exchange.path, exchange.headers, exchange.request_id, b"")
        model, route = asked_of(exchange.services, named, request)
    facts = unread_facts(model if model is not None and router.pool.knows(model) else None)
    route = route if facts.model else ""
    if exchange.services.rates.is_on and _is_work(exchange) and (limited := paid(exchange, facts.model, route, facts)):
        return exchange.refuse(limited.answer, route)
    in_flight = router.admit(facts, exchange.subset, now_s)
    if isinstance(in_flight, Refusal):
        return exchange.refuse(refusals.no_endpoint(), route)
    exchange.in_flight, exchange.route = in_flight, route
    if exchange.charge is not None:
        began(exchange, in_flight)
    in_flight.sent(facts, now_s)
    headers = _own_id(exchange)
    if route and named != in_flight.decision.model:
        headers.append((b":path", with_query_model(path, in_flight.decision.model).encode("latin-1")))
    removed = h.forbidden_in(exchange.headers)
    exchange.attempts = 1 + router.fallbacks
    if not has_ended and exchange.request_duplex:
        exchange.attempts = 1
        headers.append((names.SENT_ONCE, b"1"))
        removed = [each for each in removed if each != names.SENT_ONCE.decode()]
    made = replies.routed_headers(_destination(exchange, in_flight), headers, removed, _shown(exchange))
    exchange.request_phase = "over" if has_ended else "passing"
    return (made,)


def _is_work(exchange: Exchange) -> bool:
    """A WebSocket opens with GET, and asks for answers then."""
    headers = exchange.headers
    return headers.get(b":method") not in _LOOKING or names.UPGRADE in headers


def _shown(exchange: Exchange) -> ProcessingMode:
    """What Envoy is to show of the rest of the request, and of its answer."""
    if not exchange.request_duplex:
        return replies.SKIP_BODY
    return replies.BY_CHUNKS_BOTH_WAYS if exchange.response_duplex else replies.BY_CHUNKS


def _destination(exchange: Exchange, in_flight: InFlight) -> str:
    # Past the end of a short list Envoy would go on with any engine, perhaps of another model: repeat the list.
    addresses, wanted = in_flight.decision.addresses, 1 + exchange.services.router.fallbacks
    return ",".join(addresses if len(addresses) == wanted else islice(cycle(addresses), wanted))


def may_be_refused(exchange: Exchange, in_flight: InFlight) -> bool:
    """Whether the stream is to be held until its first event, which may be a refusal."""
    by_address = exchange.services.router.pool.by_address
    for address in in_flight.decision.addresses:
        endpoint = by_address.get(address)  # it may have left the pool while another endpoint computed the prompt
        if endpoint is not None and endpoint.limits_queue:
            return True
    return False


def _prefill_header(in_flight: InFlight) -> replies.Header:
    """Which endpoint the engine's proxy asks for the prompt; or that its KV waits for this one attempt."""
    hop, choice = in_flight.hop, in_flight.decision.prefill
    if hop is not None and hop.connector == BY_PROXY:
        return names.PREFILLER, hop.address.encode()
    return names.PREFILLED, names.ELSE_ALONE if choice is not None and choice.else_alone else b"1"


def _own_id(exchange: Exchange) -> list[replies.Header]:
    """The header for the id that we made, if we did."""
    return [] if exchange.headers.get(names.REQUEST_ID) else [(names.REQUEST_ID, exchange.request_id)]
