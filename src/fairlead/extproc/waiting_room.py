"""Requests that are held back in Envoy until an engine has room: admission on the event loop.

What happens at an endpoint wakes it, and one timer for deadlines and for prefills that should be done. Several
events of one turn of the loop make one pass over the queue.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any, Final

import msgspec

from fairlead.admission.admission import Admission, Rules
from fairlead.admission.waiting import Lane, Waiting
from fairlead.api import headers as names
from fairlead.api.durations import duration_s
from fairlead.core.endpoint import Endpoint
from fairlead.core.objective import Slo
from fairlead.extproc.headers import Headers

_LEAST_TIMER_S: Final = 0.02  # an estimate may say "now" for as long as the engine says "not yet"
_MOST_TENANT_BYTES: Final = 128
_MOST_MS_DIGITS: Final = 7
_NO_SLO: Final = Slo()
ANY_ROUTE: Final = "*"


class Terms(msgspec.Struct, frozen=True):
    """How a request is ranked in the queue, by what it and the configuration say."""

    level: int
    tenant: bytes
    longest_wait_s: float
    due_in_s: float  # inf: it states no deadline


class Naming(msgspec.Struct, frozen=True):
    """Where the level and the tenant of a request are written. Header names are in lower case."""

    levels: Mapping[bytes, int] = {}  # by the name of a priority
    default: int = 0
    of_routes: Mapping[str, int] = {}
    priority_headers: tuple[bytes, ...] = ()  # vouched for; the first that is there counts
    tenant_headers: tuple[bytes, ...] = ()  # the same
    slos: Mapping[str, Slo] = {}  # by model or route; ANY_ROUTE for the others
    believes_slos: bool = False  # somebody vouches for what requests say of theirs

    @property
    def headers(self) -> tuple[bytes, ...]:
        return (*self.priority_headers, *self.tenant_headers, *names.SLO_TTFT_MS, *names.SLO_TPOT_MS, names.QUEUE_TTL)

    def level(self, headers: Headers, route: str) -> int:
        for name in self.priority_headers:
            value = headers.get(name)
            if value is not None:
                level = self.levels.get(value)
                return self.default if level is None else level
        return self.of_routes.get(route, self.default)

    def tenant(self, headers: Headers) -> bytes:
        for name in self.tenant_headers:
            value = headers.get(name)
            if value:
                return value[:_MOST_TENANT_BYTES]
        return b""


class WaitingRoom:
    """Off until it is given rules. All methods are of one event loop."""

    def __init__(self, admission: Admission, clock_s: Callable[[], float], report_fault: Callable[[str], None]) -> None:
        self.admission = admission
        self.naming = Naming()
        self.longest_wait_s = 0.0  # of any level
        self._headers: tuple[bytes, ...] = ()
        self._clock_s = clock_s
        self._report_fault = report_fault
        self._scheduled = False
        self._looks_at_all = False  # else at the endpoints where something happened
        self._touched: set[Endpoint] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def headers(self) -> tuple[bytes, ...]:
        """That name a request's place in the queue."""
        return self._headers

    @property
    def is_on(self) -> bool:
        return self.admission.rules is not None

    @property
    def evicts(self) -> bool:
        rules = self.admission.rules
        return rules is not None and rules.evicts_lower

    def use(self, rules: Rules | None, naming: Naming, longest_wait_s: float) -> None:
        """Put these in force. What waits keeps its place; without rules all of it goes on."""
        self.naming, self.longest_wait_s = naming, longest_wait_s
        self._headers = () if rules is None else naming.headers
        for endpoint in self.admission.router.pool.endpoints:
            endpoint.notify = None if rules is None else self._on_endpoint
        self.admission.use(rules, self._clock_s())
        self.pool_changed()

    def terms(self, headers: Headers, route: str) -> Terms:
        level = self.naming.level(headers, route)
        longest_s = self.admission.band(level).longest_wait_s
        ttl = headers.get(names.QUEUE_TTL)
        if ttl is not None and (ttl_s := duration_s(ttl)) is not None:
            longest_s = min(longest_s, ttl_s)
        tenant, due_in_s = self.naming.tenant(headers), inf
        if tenant or self.naming.believes_slos:  # else it would go before what other clients sent earlier
            due_in_s = _stated_ms(headers, names.SLO_TTFT_MS, inf) / 1e3
        if due_in_s == inf and (slo := self.slo(headers, route)) is not None:
            due_in_s = slo.ttft_ms / 1e3
        return Terms(level, tenant, longest_s, due_in_s)

    def slo(self, headers: Headers, route: str) -> Slo | None:
        """What a request wants, by its headers where somebody vouches for them, else by its route."""
        naming = self.naming
        if not (self.is_on and (naming.slos or naming.believes_slos)):
            return None
        slo = naming.slos.get(route) or naming.slos.get(ANY_ROUTE)
        if not naming.believes_slos:
            return slo
        wanted = slo or _NO_SLO
        ttft_ms = _stated_ms(headers, names.SLO_TTFT_MS, wanted.ttft_ms)
        tpot_ms = _stated_ms(headers, names.SLO_TPOT_MS, wanted.tpot_ms)
        if (ttft_ms, tpot_ms) == (wanted.ttft_ms, wanted.tpot_ms):
            return slo
        return Slo(ttft_ms, tpot_ms, wanted.refuses)

    def future(self) -> asyncio.Future[Any]:
        """For what becomes of a request that enters."""
        return asyncio.get_running_loop().create_future()

    def enter(self, waiting: Waiting) -> None:
        """It waits, or is decided before this returns."""
        if self.admission.enter(waiting, self._clock_s()):
            self._wake()

    def leave(self, waiting: Waiting) -> None:
        self.admission.leave(waiting)

    def pool_changed(self) -> None:
        """Who waits for a model or adapter that nobody serves any more need not wait."""
        if self.admission.queue.requests:
            self._wake()

    def drain(self) -> None:
        """All that waits is refused now, and so is whatever would wait."""
        self.admission.drain(self._clock_s())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def retry_after_s(self, lane: Lane, level: int, tenant: bytes) -> int:
        return self.admission.retry_after_s(lane, level, tenant, self._clock_s())

    def _on_endpoint(self, endpoint: Endpoint) -> None:
        """In the middle of a change of it, so that nothing may be looked at before the next turn of the loop."""
        if self.admission.queue.requests:
            self._touched.add(endpoint)
            self._schedule()

    def _wake(self) -> None:
        self._looks_at_all = True
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        all_of_them, self._looks_at_all = self._looks_at_all, False
        touched, self._touched = self._touched, set()
        now_s = self._clock_s()
        if all_of_them or any(self.admission.may_have_room(endpoint, now_s) for endpoint in touched):
            self._release()

    def _release(self) -> None:
        now_s = self._clock_s()
        try:
            more = self.admission.release(now_s)
        except Exception:  # of one request; the others wait on
            self._report_fault(traceback.format_exc(limit=-8))
            more = True
        if more:
            self._wake()
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.admission.next_event_s() if self.admission.queue.requests else inf
        if isfinite(due_s):
            in_s = max(_LEAST_TIMER_S, due_s - self._clock_s())
            self._timer = asyncio.get_running_loop().call_later(in_s, self._release)


def _stated_ms(headers: Headers, those: tuple[bytes, ...], otherwise: float) -> float:
    """What the first of `those` that is a number says."""
    for name in those:
        value = headers.get(name, b"")
        if value.isdigit() and len(value) <= _MOST_MS_DIGITS:
            return float(value)
    return otherwise
