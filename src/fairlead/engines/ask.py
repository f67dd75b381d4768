"""Questions to engines over HTTP/1.1, each bounded in time and size. Not a client for anything else.

A watch asks the same engine for ever, on the CPU that requests want, and with a general client most of a scrape's cost
was the client's. Here a request is one write, its answer is read in callbacks of the event loop by llhttp, and the
connection is kept. Redirects are not followed, as engines send none; engines are asked by host and port, without TLS.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Literal, NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from fairlead.addresses import host_and_port

Reason = Literal["timeout", "connect", "protocol", "too_large"]
_Outcome = tuple[int, bytes] | Reason  # an answer's status and body, or why there is none

_MOST_BARE_BYTES: Final = 64 * 1024  # in a row that are of no body: headers, trailers, answers of 1xx
_KEPT_S: Final = 30.0  # what lies between may have forgotten a connection that was idle for longer


class Answer(NamedTuple):
    status: int
    body: bytes
    took_ms: float  # with the opening of the connection, if it was opened for this question


class UnansweredError(Exception):
    """No usable answer came; `reason` is for counting."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


async def ask_once(address: str, path: str, timeout_s: float, most_bytes: int, *, post: bytes | None = None) -> Answer:
    """GET `path`, or POST the JSON `post` to it, on a connection of its own. Raises UnansweredError."""
    connection = Connection(address)
    try:
        return await connection.ask(path, timeout_s, most_bytes, post=post)
    finally:
        connection.close()


class Connection:
    """Asks one address, host:port, one question at a time; opened when needed, kept between questions.

    Servers close idle connections: one that turns out closed before any of the answer came is opened again, once.
    """

    def __init__(self, address: str) -> None:
        self._host, self._port = host_and_port(address)
        self._head = f" HTTP/1.1\r\nhost: {address}\r\naccept-encoding: identity\r\n".encode()  # zip nothing for us
        self._wire: _Wire | None = None

    async def ask(self, path: str, timeout_s: float, most_bytes: int, *, post: bytes | None = None) -> Answer:
        """GET `path`, or POST the JSON `post` to it, whatever the status. Raises UnansweredError.

        To give a question up, cancel it: that closes the connection. A body is posted on a new one: never sent twice.
        """
        started_s = time.perf_counter()
        if post is None:
            request = b"GET " + path.encode() + self._head + b"\r\n"
        else:
            self.close()
            lines = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(post)
            request = b"POST " + path.encode() + self._head + lines + post
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await self._outcome(request, most_bytes)
        except TimeoutError:
            raise UnansweredError("timeout") from None
        except OSError:
            raise UnansweredError("connect") from None
        if isinstance(outcome, str):
            raise UnansweredError(outcome)
        return Answer(*outcome, (time.perf_counter() - started_s) * 1e3)

    def close(self) -> None:
        """Not while a question is under way."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _outcome(self, request: bytes, most_bytes: int) -> _Outcome:
        if self._wire is not None and self._wire.usable():
            outcome = await self._wire.ask(request, most_bytes)
            if outcome is not None:
                return outcome
        self.close()
        loop = asyncio.get_running_loop()
        _, self._wire = await loop.create_connection(lambda: _Wire(loop), self._host, self._port)
        return await self._wire.ask(request, most_bytes) or "connect"


class _Wire(asyncio.Protocol):
    """One TCP connection: the question that waits, if any, and what has come of its answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._parser = HttpResponseParser(self)  # calls the methods on_*
        self._waiter: asyncio.Future[_Outcome | None] | None = None
        self._idle_since_s = 0.0
        self._begun = False  # the answer: some of it came
        self._in_body = False
        self._framed = False  # the headers say where the body ends; if they do not, the end of the connection does
        self._bare_bytes = 0  # that came since the last part of a body
        self._parts: list[bytes] = []
        self._size = 0
        self._most_bytes = 0

    def usable(self) -> bool:
        return not self._transport.is_closing() and self._loop.time() - self._idle_since_s < _KEPT_S

    async def ask(self, request: bytes, most_bytes: int) -> _Outcome | None:
        """None if the connection ended before any of the answer came."""
        waiter: asyncio.Future[_Outcome | None] = self._loop.create_future()
        self._waiter = waiter
        self._most_bytes = most_bytes
        self._begun, self._bare_bytes = False, 0
        self._transport.write(request)
        try:
            return await waiter
        finally:
            if self._waiter is not None:  # cancelled: the answer must not be taken for that of another question
                self.close()

    def close(self) -> None:
        self._waiter = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, and does not say so

    def data_received(self, data: bytes) -> None:
        self._begun = True
        size = self._size
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._fail("protocol")
        self._bare_bytes = 0 if self._size > size else self._bare_bytes + len(data)
        if self._bare_bytes > _MOST_BARE_BYTES:
            self._fail("protocol")

    def eof_received(self) -> None:
        if self._in_body and not self._framed:
            self._succeed()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._begun:
            self._settle(None)
        else:
            self._settle("protocol" if error is None else "connect")

    def on_message_begin(self) -> None:
        self._in_body = self._framed = False
        if self._waiter is None:  # nobody has asked
            self.close()

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._in_body = self._parser.get_status_code() >= 200  # what comes with 1xx is not yet the answer

    def on_body(self, part: bytes) -> None:
        if self._waiter is None:
            return
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._most_bytes:
            self._fail("too_large")  # with the connection: the rest is on its way

    def on_message_complete(self) -> None:
        if self._in_body:
            self._succeed()
            if not self._parser.should_keep_alive():
                self.close()

    def _succeed(self) -> None:
        self._in_body = False
        self._settle((self._parser.get_status_code(), b"".join(self._parts)))

    def _fail(self, reason: Reason) -> None:
        self._settle(reason)
        self.close()

    def _settle(self, outcome: _Outcome | None) -> None:
        waiter, self._waiter = self._waiter, None
        self._parts, self._size = [], 0
        self._idle_since_s = self._loop.time()
        if waiter is not None and not waiter.done():
            waiter.set_result(outcome)
