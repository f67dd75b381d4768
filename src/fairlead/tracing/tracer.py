"""Traces of a running sidecar: the request path keeps references, a background task makes spans and sends them.

The queue is bounded; requests beyond it are dropped and counted. A collector that is away costs its spans only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import aiohttp
import structlog

from fairlead import __version__
from fairlead.addresses import without_password
from fairlead.core.policy import Ended
from fairlead.core.trace import Part, Trace
from fairlead.tracing.context import TraceContext, read_traceparent
from fairlead.tracing.exemplars import Exemplars, Traced

MOST_WAITING: Final = 2048  # requests
_SENT_AT_ONCE: Final = 256  # requests
_MADE_AT_ONCE: Final = 8  # some 0.3 ms of work; requests run in between
_SEND_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_PROTOBUF: Final = {"content-type": "application/x-protobuf"}
_HTTP_OK: Final = range(200, 300)

Outcomes = Literal["sent", "dropped", "failed"]

log = structlog.get_logger("fairlead")


class _Request(NamedTuple):
    """One that has ended, or a part of one that came later."""

    what: Ended | Part
    own: TraceContext  # of the span that is made of an `Ended`, or that a part's is below
    parent_id: bytes = b""
    trace: Trace | None = None


class Tracer:
    """`start`, then `begin` and `ended` on the request path, then `stop`."""

    is_on: Final = True

    def __init__(self, url: str, *, sample: float, clock_s: Callable[[], float]) -> None:
        """`url` takes OTLP over HTTP. `sample` is the share of requests without a trace of their own that get one."""
        self._url = url
        self._sample = sample
        self._clock_s = clock_s
        self._waiting: deque[_Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._is_ending = asyncio.Event()
        self.counts: Counter[Outcomes] = Counter({"sent": 0, "dropped": 0, "failed": 0})
        self.exemplars = Exemplars()

    def begin(self) -> Trace | None:
        """What a request that comes now is to note its parts in."""
        return Trace()

    def ended(self, ended: Ended, traceparent: bytes, trace: Trace | None = None) -> None:
        """A request has ended. One that belongs to a trace, by its `traceparent`, is sampled as that trace is."""
        parent = read_traceparent(traceparent) if traceparent else None
        if not (random.random() < self._sample if parent is None else parent.sampled):
            if trace is not None:
                trace.ended(_forget)
            return
        trace_id, parent_id = (os.urandom(16), b"") if parent is None else (parent.trace_id, parent.span_id)
        own = TraceContext(trace_id, os.urandom(8), sampled=True)
        if trace is not None:
            trace.ended(partial(self._came_later, own), own.traceparent)
        self._keep(_Request(ended, own, parent_id, trace))

    def _came_later(self, own: TraceContext, part: Part) -> None:
        self._keep(_Request(part, own))

    def _keep(self, request: _Request) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.counts["dropped"] += 1
            return
        self._waiting.append(request)

    def start(self) -> None:
        """Begin to send, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send what is left, if the collector answers."""
        self._is_ending.set()
        await (self._run() if self._task is None else self._task)

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while not self._is_ending.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_ending.wait(), _SEND_EVERY_S)
                while self._waiting:
                    await self._send(session)
                    if self._is_failing:
                        break
            while self._waiting and not self._is_failing:
                await self._send(session)

    async def _send(self, session: aiohttp.ClientSession) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue

        from fairlead.tracing.spans import part_span, spans

        message, count = ExportTraceServiceRequest(), 0
        resource = message.resource_spans.add()
        resource.resource.attributes.add(key="service.name", value=AnyValue(string_value="fairlead"))
        resource.resource.attributes.append(KeyValue(key="service.version", value=AnyValue(string_value=__version__)))
        scope = resource.scope_spans.add(scope=InstrumentationScope(name="fairlead", version=__version__))
        unix_s = time.time() - self._clock_s()
        while self._waiting and count < _SENT_AT_ONCE:
            what, own, parent_id, trace = self._waiting.popleft()
            if isinstance(what, Part):
                scope.spans.append(part_span(what, own, unix_s))
            else:
                traced = Traced(own.trace_id.hex(), what.ended_s - what.begun_s, unix_s + what.ended_s)
                self.exemplars.keep(what.decision.model, traced)
                scope.spans.extend(spans(what, own, parent_id, unix_s, () if trace is None else trace.parts))
            count += 1
            if count % _MADE_AT_ONCE == 0:
                await asyncio.sleep(0)
        reason = await self._posted(session, message.SerializeToString())
        self.counts["failed" if reason else "sent"] += count
        if reason and not self._is_failing:
            log.warning("traces were not sent", collector=without_password(self._url), reason=reason)
        self._is_failing = bool(reason)

    async def _posted(self, session: aiohttp.ClientSession, body: bytes) -> str:
        """Why it failed; empty if it did not."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        try:
            async with session.post(self._url, data=body, headers=_PROTOBUF, timeout=timeout) as response:
                return "" if response.status in _HTTP_OK else f"HTTP {response.status}"
        except ValueError:  # its text may be the URL, which may hold a password
            return "this is no host and port"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return str(error) or type(error).__name__


def _forget(_: Part) -> None:
    """Of a request that is not sampled."""


class NoTracer:
    """Nothing is traced."""

    is_on: Final = False

    counts: Mapping[Outcomes, int] = MappingProxyType({})
    exemplars: Final = Exemplars()  # none

    def begin(self) -> Trace | None:
        """Nothing is noted."""
        return None

    def ended(self, ended: Ended, traceparent: bytes, trace: Trace | None = None) -> None:
        """Nothing is kept."""

    def start(self) -> None:
        """There is nothing to send."""

    async def stop(self) -> None:
        """There is nothing left."""
