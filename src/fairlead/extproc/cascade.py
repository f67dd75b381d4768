"""Cascades at the edge: which requests enter one, which answers are held back, and how Envoy is answered in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from fairlead.api import headers as names
from fairlead.cascade.counts import Reason
from fairlead.cascade.escalation import Escalation, Settled
from fairlead.cascade.route import CascadeRoute, Entry, enter, first_stage
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.core.router import Router
from fairlead.core.trace import Trace
from fairlead.extproc import headers as h
from fairlead.extproc import replies
from fairlead.extproc.body import whole
from fairlead.extproc.request import Asked, HttpRequest

HELD_HEADERS: Final = frozenset({b"content-length", b"content-encoding", b"content-type"})  # of an answer
_MOST_LENGTH_DIGITS: Final = 18
_TIMEOUT_MARGIN_S = 5.0  # beyond a route's deadline, before Envoy goes on without us


class Held(msgspec.Struct, frozen=True, gc=False):
    """An answer that Envoy holds back until it is settled."""

    entry: Entry
    headers: h.Headers  # of the request
    request_id: bytes
    body: bytes
    started_s: float
    trace: Trace | None = None


class Admitted(NamedTuple):
    """A request that has an endpoint. `facts` are of the model that it goes to."""

    in_flight: InFlight
    facts: RequestFacts
    entry: Entry | None = None  # into a cascade, whose judge is to see the answer


class RequestCascades:
    """A request keeps the route that it entered by, even if `routes` is replaced meanwhile."""

    def __init__(self, escalation: Escalation) -> None:
        self.escalation = escalation
        self.counts = escalation.counts
        self.routes: Mapping[str, CascadeRoute] = {}  # replaced all at once

    def route_of(self, asked: str, headers: h.Headers) -> CascadeRoute | None:
        """None for other models and routes, and for requests that a cascade itself sent."""
        route = self.routes.get(asked)
        return None if route is None or self.is_inner(headers) else route

    def is_inner(self, headers: h.Headers) -> bool:
        """Whether a cascade itself sent this request: a client can write the header, but not what is in it."""
        return headers.get(names.INNER) == self.escalation.secret

    def admit(
        self,
        router: Router,
        route: CascadeRoute,
        request: HttpRequest,
        asked: Asked,
        facts: RequestFacts,
        others: Sequence[Sequence[int]],
        now_s: float,
        *,
        judged: bool,
    ) -> Admitted | Refusal:
        """An endpoint of the first model of the cascade that has one. Unless it can be `judged`, its answer passes."""

        def chance(model: str) -> float:
            endpoint = next(iter(router.pool.serving(model)), None)
            if endpoint is None:
                return 0.0
            capability = endpoint.spec.capability_of("" if model == endpoint.model else model)
            return capability.success_probability(facts.language, facts.bucket, facts.tokens)

        entry, prompt = None, asked.prompt
        if judged and len(request.body) <= route.most_bytes:
            flags = {"streams": prompt.streams, "with_usage": prompt.with_usage}
            entry = enter(
                route,
                request.path,
                whole(request.body),
                chance,
                **flags,
                spans=asked.spans,
                attempted=facts.attempted,
            )
        if entry is None:
            self.counts.passed_for(route.name, "unjudgeable" if judged else "full_duplex")
        stage = first_stage(route, chance, facts.attempted) if entry is None else entry.stage
        while True:
            staged = None if entry is None else msgspec.structs.replace(entry, stage=stage)
            model = route.models[stage]
            staged_facts = router.pool.called(msgspec.structs.replace(facts, model=model), model)
            in_flight = router.admit(staged_facts, request.subset, now_s, others)
            if not isinstance(in_flight, Refusal):
                return Admitted(in_flight, in_flight.request, staged)
            if stage == len(route.models) - 1:
                return in_flight
            stage += 1

    def holds(self, entry: Entry, headers: h.Headers) -> bool:
        """Whether an answer with these response headers can be held in Envoy's buffer and read."""
        reason: Reason | None = None
        length = headers.get(b"content-length", b"")
        plain = headers.get(b"content-encoding", b"identity") == b"identity"
        if not plain or not headers.get(b"content-type", b"").startswith(b"application/json"):
            reason = "unreadable"
        elif not length.isdigit() or len(length) > _MOST_LENGTH_DIGITS or int(length) > entry.route.most_bytes:
            reason = "too_large"  # of unknown length: it might be too large, and Envoy would fail it
        if reason is not None:
            self.counts.passed_for(entry.route.name, reason)
        return reason is None

    async def settle(self, held: Held) -> bytes:
        """The reply that ends the wait. Only cancellation is raised."""
        settled = await self.escalation.settle(
            held.entry, held.headers, held.request_id, held.body, held.started_s, held.trace
        )
        return replies.settled_body(_headers(settled), settled.body)


def wait_for(held: Held) -> bytes:
    """The reply that makes Envoy wait."""
    return replies.wait(held.entry.route.deadline_s + _TIMEOUT_MARGIN_S)


def _headers(settled: Settled) -> list[replies.Header]:
    scores = ",".join(f"{score:g}" for score in settled.scores)
    headers = [
        (names.CASCADE_STAGE, str(settled.stage).encode()),
        (names.CASCADE_SCORES, scores.encode()),
        (names.CASCADE_ADDED_MS, f"{settled.added_ms:.0f}".encode()),
    ]
    who = ((names.MODEL, settled.model), (names.ENDPOINT, settled.endpoint), (names.DECISION, settled.decision))
    headers += [(name, value.encode(errors="surrogateescape")) for name, value in who if value]  # as they came
    if settled.events:
        headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
    return headers
