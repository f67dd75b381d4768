"""Admission of one request: whether it must wait in the queue, and its replies once the queue has decided."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlead.admission.waiting import Lane, Verdict, Waiting
from fairlead.api import refusals
from fairlead.api.refusals import HttpAnswer
from fairlead.extproc.exchange import Exchange, Replies
from fairlead.extproc.pick import Pick, Prepared, Refused
from fairlead.extproc.routed import begun, place_counted
from fairlead.extproc.services import Services
from fairlead.extproc.waiting_room import Terms

if TYPE_CHECKING:
    import asyncio


def must_wait(exchange: Exchange, prepared: Prepared) -> Terms | None:
    """Its place in the queue; None if it may begin now."""
    services, asked, headers = exchange.services, prepared.asked, exchange.headers
    if not services.router.pool.knows(asked.name):
        return None
    if services.cascades.is_inner(headers):
        return None  # what a cascade asks of its larger models has waited once
    terms = services.waiting.terms(headers, asked.route)
    exchange.level = terms.level
    lane = _lane(exchange, prepared)
    return None if services.admission.passes(lane, terms.level, services.clock_s(), prepared.facts) else terms


def join_queue(
    exchange: Exchange, prepared: Prepared, terms: Terms, *, end_of_stream: bool
) -> asyncio.Future[Replies | Pick]:
    """What `begun` gives, once it has an endpoint or is refused."""
    services, body = exchange.services, prepared.request.body
    decided: asyncio.Future[Replies | Pick] = services.waiting.future()
    now_s = services.clock_s()

    def decide(verdict: Verdict) -> float:
        exchange.waiting = None
        waited_s = services.clock_s() - now_s
        exchange.waited_ms = waited_s * 1e3
        if verdict == "go":
            try:
                picked = place_counted(exchange, prepared, waited_s)
            except Exception:  # an internal error; the body was read, so that it may be passed on is known
                exchange.report_fault()
                picked = Refused(refusals.unreadable())
        else:
            picked = Refused(_refusal(services, verdict, waiting), prepared.asked.route)
        decided.set_result(begun(exchange, picked, body, end_of_stream=end_of_stream))
        return exchange.engine_ms if isinstance(picked, Pick) else 0.0

    lane, facts = _lane(exchange, prepared), prepared.facts
    wait_s = min(terms.longest_wait_s, services.admission.longest_useful_wait_s(lane, facts, now_s))
    otherwise = None
    if lane.tpot_ms < inf and facts.slo is not None and not facts.slo.refuses:
        otherwise = services.admission.lane(lane.model, lane.subset, context=lane.context), now_s + wait_s
        wait_s = services.admission.most_for_pace_s(facts, wait_s)
    waiting = exchange.waiting = Waiting(
        lane,
        decide,
        level=terms.level,
        tenant=terms.tenant,
        cost_ms=services.admission.expected_ms(lane, facts),
        size_bytes=len(body),
        request=facts,
        arrived_s=now_s,
        expires_s=now_s + wait_s,
        due_s=now_s + terms.due_in_s,
        otherwise=otherwise,
    )
    services.waiting.enter(waiting)
    return decided


def _lane(exchange: Exchange, prepared: Prepared) -> Lane:
    """Of a cascade that of the first model: an idle larger one must not let its requests in."""
    services, asked = exchange.services, prepared.asked.name
    cascade = services.cascades.routes.get(asked)
    model = asked if cascade is None else cascade.models[0]
    return services.admission.lane_of(model, exchange.subset, prepared.facts)


def _refusal(services: Services, verdict: Verdict, waiting: Waiting) -> HttpAnswer:
    if verdict == "shutting_down":
        return refusals.shutting_down()
    retry_after_s = services.waiting.retry_after_s(waiting.lane, waiting.level, waiting.tenant)
    return refusals.saturated(retry_after_s, b"rejected-ttl-expired" if verdict == "expired" else b"rejected-saturated")
