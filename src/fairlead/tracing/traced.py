"""One request as the request path leaves it for tracing. It needs no library of OpenTelemetry's, and spans do."""

from __future__ import annotations

import msgspec

from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Decision, Outcome
from fairlead.tracing.context import TraceContext


class Traced(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a request until its spans are made. Times are of the router's clock."""

    request: RequestFacts
    decision: Decision
    outcome: Outcome
    address: str  # that answered
    request_id: bytes
    parent: TraceContext | None
    begun_s: float
    ended_s: float
    waited_ms: float = 0.0  # in the admission queue, as part of what the decision took
