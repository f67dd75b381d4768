"""Cascades at the edge: which requests enter one, which answers are held back, and what Envoy is told in the end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from fairlead.cascade.serving.counts import CascadeCounts, Reason
from fairlead.cascade.serving.escalation import Escalation, Settled
from fairlead.cascade.serving.route import CascadeRoute, Entry, enter, first_stage
from fairlead.core.facts import RequestFacts
from fairlead.core.router import Decision, Refusal, Router
from fairlead.extproc import headers as h
from fairlead.extproc import replies

_TIMEOUT_MARGIN_S = 5.0  # beyond a route's deadline, before Envoy goes on without us


class Held(msgspec.Struct, frozen=True, gc=False):
    """An answer that Envoy holds back until it is settled."""

    entry: Entry
    headers: h.Headers  # of the request
    request_id: bytes
    body: bytes
    started_s: float


class RequestCascades:
    """A request keeps the route that it entered by, whatever becomes of `routes` meanwhile."""

    def __init__(self, counts: CascadeCounts) -> None:
        self.counts = counts
        self.escalation: Escalation | None = None  # made when the event loop runs
        self.routes: Mapping[str, CascadeRoute] = {}  # replaced all at once

    def route_of(self, asked: str, headers: h.Headers) -> CascadeRoute | None:
        """None for other models and routes, and for requests that a cascade itself sent."""
        route = self.routes.get(asked)
        if route is None or self.escalation is None or headers.get(h.INNER) == self.escalation.secret:
            return None
        return route

    def decide(
        self,
        router: Router,
        route: CascadeRoute,
        facts: RequestFacts,
        path: str,
        body: bytes,
        subset: Collection[str] | None,
        now_s: float,
        *others: Any,
        can_hold: bool,
    ) -> tuple[Decision | Refusal, RequestFacts, Entry | None]:
        """A place at the first model of the cascade that has one; the entry is None where the answer passes."""

        def chance(model: str) -> float:
            endpoint = next((each for each in router.pool.endpoints if each.model == model), None)
            if endpoint is None:
                return 0.0
            return endpoint.capability.success_probability(facts.language, facts.bucket, facts.tokens)

        entry = enter(route, path, body, chance) if can_hold else None
        if entry is None:
            self.counts.passed_for(route.name, "unjudgeable" if can_hold else "full_duplex")
        stage = first_stage(route, chance) if entry is None else entry.stage
        while True:
            facts = msgspec.structs.replace(facts, model=route.models[stage])
            decision = router.decide(facts, subset, now_s, *others)
            if not isinstance(decision, Refusal) or stage == len(route.models) - 1:
                break
            stage += 1
        return decision, facts, None if entry is None else msgspec.structs.replace(entry, stage=stage)

    def holds(self, entry: Entry, headers: h.Headers) -> bool:
        """Whether an answer with these response headers can be held in Envoy's buffer and read."""
        reason: Reason | None = None
        length = headers.get(b"content-length", b"")
        plain = headers.get(b"content-encoding", b"identity") == b"identity"
        if not plain or not headers.get(b"content-type", b"").startswith(b"application/json"):
            reason = "unreadable"
        elif not length.isdigit() or int(length) > entry.route.most_bytes:
            reason = "too_large"  # of unknown length: it might be, and Envoy would fail it
        if reason is not None:
            self.counts.passed_for(entry.route.name, reason)
        return reason is None

    async def settle(self, held: Held) -> bytes:
        """The reply that ends the wait. Only cancellation is raised."""
        assert self.escalation is not None
        settled = await self.escalation.settle(held.entry, held.headers, held.request_id, held.body, held.started_s)
        return replies.settled_body(_headers(settled), settled.body)


def wait_for(held: Held) -> bytes:
    """The reply that makes Envoy wait."""
    return replies.wait(held.entry.route.deadline_s + _TIMEOUT_MARGIN_S)


def _headers(settled: Settled) -> list[replies.Header]:
    scores = ",".join(f"{score:g}" for score in settled.scores)
    headers = [
        (h.CASCADE_STAGE, str(settled.stage).encode()),
        (h.CASCADE_SCORES, scores.encode()),
        (h.CASCADE_ADDED_MS, f"{settled.added_ms:.0f}".encode()),
    ]
    who = ((h.MODEL, settled.model), (h.ENDPOINT, settled.endpoint), (h.DECISION, settled.decision))
    headers += [(name, value.encode("latin-1", "replace")) for name, value in who if value]
    if settled.events:
        headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
    return headers
