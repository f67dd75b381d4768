"""A request whose prompt another engine computes first: Envoy holds it meanwhile, then it goes out with its KV's place.

A prefill that fails, or is late, costs the request that time: its own endpoint then computes the prompt.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import msgspec

from fairlead.api import headers as names
from fairlead.api import refusals
from fairlead.api.edits import with_values
from fairlead.api.one_token import PARAMETERS
from fairlead.api.spans import object_spans
from fairlead.cascade.escalation import PASSED_ON
from fairlead.core.endpoint import BY_ROOM
from fairlead.core.hop import Hop
from fairlead.core.trace import Part
from fairlead.engines.alongside import MOST_S
from fairlead.engines.remote_prefill import Header, NotPrefilledError
from fairlead.extproc.body import Body, whole
from fairlead.extproc.exchange import Exchange, Replies
from fairlead.extproc.pick import Pick
from fairlead.extproc.routed import routed

MOST_PREFILL_S: Final = 60.0  # for which a request is held at most; with twice Mooncake's 2 s it is still Envoy's wait
_LEAST_PREFILL_S: Final = 5.0
_LATE: Final = 3.0  # times what was expected
LEAST_SILENCE_S: Final = 30.0  # of one of SGLang's servers, whose prompts wait for room at the other, before it counts
_PASSED_ON: Final = tuple(name.encode() for name in PASSED_ON)


async def prefilled(exchange: Exchange, picked: Pick, body: Body, *, end_of_stream: bool) -> Replies:
    """The replies that give a request its endpoint, once its prompt is computed or cannot be; `begun` gave `picked`."""
    services, in_flight, facts = exchange.services, picked.in_flight, picked.unsent
    hop, sent = in_flight.hop, whole(body if picked.body is None else picked.body)
    assert hop is not None
    assert facts is not None
    if hop.connector == BY_ROOM:
        return _with_both(exchange, picked, hop, body, end_of_stream=end_of_stream)
    changed: bytes | None = None
    began_s, error_type = services.clock_s(), ""
    try:
        changed = await _with_its_place(exchange, hop, sent)
    except NotPrefilledError as error:
        error_type = error.reason
        in_flight.prefill_failed(services.clock_s(), blames=error.blames)
    except Exception:  # an internal error; the body was read, so that it may be passed on is known
        error_type = "fault"
        exchange.report_fault()
        in_flight.prefill_failed(services.clock_s(), blames="nobody")
    if exchange.trace is not None:
        exchange.trace.add(_part(hop.address, began_s, services.clock_s(), error_type))
    if exchange.request_phase != "reading":
        return ()
    now_s = services.clock_s()
    if changed is not None:
        in_flight.prefilled_elsewhere(now_s)
    in_flight.sent(facts, now_s)
    if changed is not None:
        picked = msgspec.structs.replace(picked, body=changed)
    return routed(exchange, picked, body, end_of_stream=end_of_stream)


def _with_both(exchange: Exchange, picked: Pick, hop: Hop, body: Body, *, end_of_stream: bool) -> Replies:
    """The request goes to both servers now: neither can do it without the other."""
    services, in_flight, facts = exchange.services, picked.in_flight, picked.unsent
    sent = whole(body if picked.body is None else picked.body)
    assert facts is not None
    try:
        within_s = min(max(LEAST_SILENCE_S, _LATE * hop.expected_ms / 1e3), MOST_S)
        asked = services.prefills.meeting(hop.address, exchange.path, sent, _headers(exchange), within_s)
    except NotPrefilledError:
        exchange.withdraw()
        return exchange.refuse(refusals.one_server(), picked.route)

    now_s = services.clock_s()
    in_flight.prefilled_elsewhere(now_s, ended=False)
    in_flight.sent(facts, now_s)
    exchange.prefill = services.prefills.begin(asked, in_flight, services.clock_s)
    if exchange.trace is not None:
        exchange.prefill.add_done_callback(partial(_traced, exchange, hop.address, now_s))
    return routed(exchange, msgspec.structs.replace(picked, body=asked.body), body, end_of_stream=end_of_stream)


def _traced(exchange: Exchange, address: str, began_s: float, prefill: asyncio.Task[None]) -> None:
    assert exchange.trace is not None
    error = "cancelled" if prefill.cancelled() else ""
    exchange.trace.add(_part(address, began_s, exchange.services.clock_s(), error))


def _part(address: str, began_s: float, now_s: float, error: str) -> Part:
    return Part("fairlead.prefill", began_s, now_s, {"server.address": address}, error)


async def _with_its_place(exchange: Exchange, hop: Hop, sent: bytes) -> bytes:
    """`sent` with the parameters by which its engine gets the KV of its prompt. Raises NotPrefilledError."""
    services = exchange.services
    within_s = min(max(_LEAST_PREFILL_S, _LATE * hop.expected_ms / 1e3), MOST_PREFILL_S)
    done = await services.prefills.compute(
        hop.address, hop.connector, exchange.path, sent, _headers(exchange), within_s
    )
    now_s = services.clock_s()
    if not services.stalls.any_since(exchange.started_s, now_s):
        seen = hop.observation(done.prompt_tokens, done.cached_tokens, now_s)
        services.learner.observe(seen, services.router.pool)
    spans = object_spans(sent)
    assert spans is not None  # they were found for the prefill
    return with_values(sent, spans, {PARAMETERS: done.parameters})


def _headers(exchange: Exchange) -> list[Header]:
    """Of the request, what the engine that computes its prompt needs too: who asks, and for whose trace."""
    own, services = exchange.headers, exchange.services
    if services.clients.path is not None:  # a client's key is for this gateway alone
        own = {name: value for name, value in own.items() if name not in (names.AUTHORIZATION, names.API_KEY)}
    passed = [(name, own[name]) for name in (*_PASSED_ON, *services.inner_headers) if name in own]
    return [*passed, (names.REQUEST_ID, exchange.request_id)]
