"""One request that waits, and what it may be told in the end."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal

import msgspec

from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts

Verdict = Literal["go", "full", "expired", "displaced", "shutting_down"]
Decide = Callable[[Verdict], float]
"""Called once with what becomes of the request. After `go` it has its endpoint, and returns the engine time in ms that
it takes there; 0 where it was refused after all, and for every other verdict."""


class Lane(msgspec.Struct, frozen=True):
    """Requests that may go to the same endpoints. Lanes of one `group` compete for endpoints, others never do."""

    model: str | None  # served model or route, as asked
    group: str  # of models that some route connects
    subset: frozenset[str] | None = None  # of endpoints, where the gateway gave one
    tpot_ms: float = inf  # they wait for an endpoint that decodes at this pace
    context: float = 0  # that their prompts need, where some endpoints have less; 0: any will do, or none has enough

    def may_go_to(self, endpoint: Endpoint) -> bool:
        if self.context and endpoint._max_model_len is not None and endpoint._max_model_len < self.context:
            return False
        return self.subset is None or endpoint.address in self.subset


class Waiting:
    """Compared by identity. `number`, `account` and `flow` are the queue's."""

    __slots__ = (
        "account",
        "arrived_s",
        "cost_ms",
        "decide",
        "due_s",
        "expires_s",
        "flow",
        "holds_up",
        "lane",
        "level",
        "number",
        "otherwise",
        "request",
        "size_bytes",
        "tenant",
    )

    def __init__(
        self,
        lane: Lane,
        decide: Decide,
        *,
        level: int = 0,
        tenant: bytes = b"",
        cost_ms: float = 1.0,
        size_bytes: int = 0,
        request: RequestFacts | None = None,
        arrived_s: float = 0.0,
        expires_s: float = inf,
        due_s: float = inf,
        otherwise: tuple[Lane, float] | None = None,
    ) -> None:
        self.lane = lane
        self.decide = decide
        self.level = level  # the band: higher first
        self.tenant = tenant
        self.cost_ms = cost_ms  # of engine time, expected
        self.size_bytes = size_bytes
        self.request = request  # None: of any length
        self.arrived_s = arrived_s
        self.expires_s = expires_s
        self.due_s = min(due_s, expires_s)  # the first due of a tenant goes first; equal ones in order of arrival
        self.otherwise = otherwise  # the lane in which it waits on after `expires_s`, and until when
        self.holds_up = False  # others in its lane, as it was next and did not fit
        self.number = 0
        self.account: object = None  # None: it does not wait
        self.flow: object = None
