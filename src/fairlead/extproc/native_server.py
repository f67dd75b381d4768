"""The processor on Fairlead's own edge."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator
from typing import Final

from fairlead.api.headers import FIRST_EVENT, FOLLOWS, TRACEPARENT
from fairlead.edge.grpc import Call, Health, Method, Status, StatusError
from fairlead.edge.server import Server
from fairlead.edge.tls import TlsFiles
from fairlead.extproc.first_event import FirstEvent
from fairlead.extproc.messages import Message, read
from fairlead.extproc.processing import Processing
from fairlead.extproc.replies import Reply
from fairlead.extproc.server import (
    HEALTH_NAMES,
    LIVENESS,
    PROCESS,
    READINESS_NAMES,
    TOO_EARLY,
    max_message_bytes,
    until_noticed,
)
from fairlead.extproc.services import Services

_MOST_WAITING: Final = 8  # messages; Envoy leaves none waiting, as it waits for the reply
_REPLIES_A_TURN: Final = 8  # of the loop: 0.5 MB where a body is streamed back, about half a millisecond


class NativeServer:
    """See `ProcessorServer`."""

    def __init__(self, services: Services, address: str, tls: TlsFiles | None = None) -> None:
        self._services = services
        self._address = address
        self._health = Health(HEALTH_NAMES)
        process = Method(lambda call: _made(call, services), read=read)
        methods = {PROCESS: process, **self._health.methods(), **services.envoys.methods()}
        self._server = Server(
            methods,
            max_message_bytes=max_message_bytes(services),
            report_fault=services.recorder.stream_failed,
            tls=tls,
        )
        services.edge = self._server.statistics

    async def start(self) -> int:
        port = await self._server.start(self._address)
        self._health.set(HEALTH_NAMES if self._services.pool_is_known else (LIVENESS,), serving=True)
        return port

    async def report_ready(self) -> None:
        self._health.set(READINESS_NAMES, serving=True)

    async def withdraw(self) -> None:
        self._health.set(READINESS_NAMES, serving=False)
        if self._server.statistics().open_connections:
            await until_noticed(lambda: self._health.checks)

    async def drain(self, grace_s: float) -> None:
        await self._server.drain(grace_s)


def _made(call: Call, services: Services) -> ProcessCall | FirstEventCall:
    return FirstEventCall(call, services) if FIRST_EVENT in call.metadata else ProcessCall(call, services)


class FirstEventCall:
    """One attempt at an engine that may refuse in its first event."""

    __slots__ = ("_call", "_first")

    def __init__(self, call: Call, services: Services) -> None:
        self._call = call
        self._first = FirstEvent(services, call.metadata[FIRST_EVENT])

    def message(self, message: Message) -> None:
        for reply in self._first.on(message):
            self._call.send(reply)
        if self._first.is_over:
            self._call.finish()

    def half_closed(self) -> None:
        self._call.finish()

    def closed(self) -> None:
        """It has taken nothing."""


class ProcessCall:
    """One request of Envoy's. While late replies are being made or many are sent, further messages wait their turn."""

    __slots__ = ("_call", "_is_early", "_is_last", "_later", "_processing", "_recorder", "_unsent", "_waiting")

    def __init__(self, call: Call, services: Services) -> None:
        self._call = call
        self._recorder = services.recorder
        self._processing = Processing(services, call.send, call.metadata.get(TRACEPARENT, b""))
        self._is_early = not services.pool_is_known
        self._is_last = False  # the client has sent all that it will
        self._later: asyncio.Future[Iterable[Reply]] | None = None
        self._unsent: Iterator[Reply] | None = None  # the rest of the replies to one message
        self._waiting: deque[Message] = deque()
        self._recorder.running_streams += 1
        if services.envoys.is_awaited and FOLLOWS in call.metadata:
            self._wait_for(_nothing_after(services.envoys.followed()))

    def message(self, message: Message) -> None:
        if self._later is None and self._unsent is None:
            if self._is_early:
                raise StatusError(Status.UNAVAILABLE, TOO_EARLY)
            self._on(message)
        elif len(self._waiting) < _MOST_WAITING:
            self._waiting.append(message)
        else:
            raise StatusError(Status.RESOURCE_EXHAUSTED, "too many messages before the reply to an earlier one")

    def half_closed(self) -> None:
        self._is_last = True
        self._go_on()

    def closed(self) -> None:
        if self._later is not None:
            self._later.cancel()
        self._recorder.running_streams -= 1
        self._processing.close()

    def _on(self, message: Message) -> None:
        self._reply(iter(self._processing.on(message)))

    def _reply(self, replies: Iterator[Reply]) -> None:
        """Send `replies`, so many in a turn of the loop that those of a long body delay no neighbour."""
        self._unsent = None
        for number, reply in enumerate(replies, 1):
            if isinstance(reply, bytes):
                self._call.send(reply)
            else:
                self._call.send(reply.head, reply.body)
            if number == _REPLIES_A_TURN:
                self._unsent = replies
                asyncio.get_running_loop().call_soon(self._reply_on)
                return
        later = self._processing.later()
        if later is not None:
            self._wait_for(later)

    def _wait_for(self, later: Awaitable[Iterable[Reply]]) -> None:
        self._later = asyncio.ensure_future(later)
        self._later.add_done_callback(self._reply_later)

    def _reply_on(self) -> None:
        if self._unsent is None or not self._call.is_open:
            return
        self._reply(self._unsent)
        self._go_on()

    def _reply_later(self, later: asyncio.Future[Iterable[Reply]]) -> None:
        if later.cancelled():
            return
        self._later = None
        self._reply(iter(later.result()))
        self._go_on()

    def _go_on(self) -> None:
        """What came while replies were being made or sent."""
        while self._later is None and self._unsent is None and self._call.is_open:
            if not self._waiting:
                if self._is_last:
                    self._call.finish()
                return
            self._on(self._waiting.popleft())


async def _nothing_after(waited: Awaitable[None]) -> Iterable[Reply]:
    await waited
    return ()
