"""Requests to engines over HTTP/1.1, each bounded in time and size. Not a general HTTP client.

A watch asks the same engine forever, on the CPU that requests need, and with a general client most of a scrape's cost
was the client's. Here a request is one write, llhttp parses the answer in callbacks of the event loop, and the
connection is kept. Redirects are not followed, as engines send none; an `Access` says where TLS or a key is needed.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from fairlead.access import PLAIN, Access
from fairlead.addresses import host_and_port
from fairlead.api.headers import AUTHORIZATION
from fairlead.engines.credentials import credentials_of
from fairlead.errors import UserError

Reason = Literal["timeout", "connect", "protocol", "too_large"]
_Outcome = tuple[int, bytes] | Reason  # an answer's status and body, or the reason for none

_MOST_BARE_BYTES: Final = 64 * 1024  # in a row outside bodies: headers, trailers, 1xx answers
_TCPI_RTT: Final = 68  # offset of the field: after 8 one-byte and 15 four-byte fields
_TCP_INFO_BYTES: Final = _TCPI_RTT + 4
_KEPT_S: Final = 30.0  # middleboxes may have dropped a connection that was idle for longer


class Answer(NamedTuple):
    status: int
    body: bytes
    took_ms: float  # includes opening the connection, if that was needed


class UnansweredError(Exception):
    """No usable answer came; `reason` is for counting."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


async def ask_once(
    address: str,
    path: str,
    timeout_s: float,
    most_bytes: int,
    *,
    post: bytes | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    access: Access = PLAIN,
) -> Answer:
    """GET `path`, or POST the JSON `post` to it, on a connection of its own. Raises UnansweredError."""
    connection = Connection(address, access)
    try:
        return await connection.ask(path, timeout_s, most_bytes, post=post, headers=headers)
    finally:
        connection.close()


async def connect_ms(address: str, timeout_s: float) -> float:
    """The network round trip to `address`, measured by the handshake of a TCP connection. Raises UnansweredError.

    The kernels at both ends shake hands, so neither the engine's event loop nor ours adds to it. Linux reports what it
    measured; elsewhere it is timed around the call.
    """
    host, port = host_and_port(address)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as connection:
        connection.setblocking(False)
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(connection, (host, port))
        except TimeoutError:
            raise UnansweredError("timeout") from None
        except OSError:
            raise UnansweredError("connect") from None
        return _kernels_rtt_ms(connection) or (time.perf_counter() - started_s) * 1e3


def _kernels_rtt_ms(connection: socket.socket) -> float | None:
    """`tcpi_rtt` of Linux's `struct tcp_info`; 0 if the handshake was retransmitted."""
    if sys.platform != "linux":
        return None
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if len(info) < _TCP_INFO_BYTES:
        return None
    return int.from_bytes(info[_TCPI_RTT:_TCP_INFO_BYTES], sys.byteorder) / 1e3


class Connection:
    """A connection to one host:port, for one question at a time; opened when needed, kept between questions.

    Servers close idle connections: if it turns out closed before any of the answer arrived, it is opened again, once.
    """

    def __init__(self, address: str, access: Access = PLAIN) -> None:
        self._credentials = credentials_of(access)
        self._host, self._port = host_and_port(address)
        self._head = f" HTTP/1.1\r\nhost: {address}\r\naccept-encoding: identity\r\n".encode()  # no compression
        self._wire: _Wire | None = None

    def reach(self, access: Access) -> None:
        """Open connections like this from now on."""
        credentials = credentials_of(access)
        if credentials is not self._credentials:
            self.close()
            self._credentials = credentials

    async def ask(
        self,
        path: str,
        timeout_s: float,
        most_bytes: int,
        *,
        post: bytes | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Answer:
        """GET `path`, or POST the JSON `post` to it, whatever the status. Raises UnansweredError.

        Cancelling a question closes the connection. A body is posted on a new connection, so it is never sent twice.
        A header of several lines is left out: it would say more than its name.
        """
        started_s = time.perf_counter()
        try:
            key = self._credentials.header()
        except UserError:  # the file is gone since the start
            raise UnansweredError("connect") from None
        head = self._head + key
        if post is None:
            request = b"GET " + path.encode() + head + b"\r\n"
        else:
            self.close()
            lines = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(post)
            replaced = AUTHORIZATION if key else None  # the engine's own key stands for a client's
            kept = [(name, value) for name, value in headers if name != replaced and _is_one_line(value)]
            own = b"".join([b"%b: %b\r\n" % header for header in kept])
            request = b"POST " + path.encode() + head + own + lines + post
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await self._outcome(request, most_bytes)
        except TimeoutError:
            raise UnansweredError("timeout") from None
        except (OSError, UserError):
            raise UnansweredError("connect") from None
        if isinstance(outcome, str):
            raise UnansweredError(outcome)
        return Answer(*outcome, (time.perf_counter() - started_s) * 1e3)

    def close(self) -> None:
        """Close the connection; not while a question is under way."""
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
        context = self._credentials.context()
        name = None if context is None else self._credentials.server_name
        _, self._wire = await loop.create_connection(
            lambda: _Wire(loop), self._host, self._port, ssl=context, server_hostname=name
        )
        return await self._wire.ask(request, most_bytes) or "connect"


def _is_one_line(value: bytes) -> bool:
    return b"\r" not in value and b"\n" not in value


class _Wire(asyncio.Protocol):
    """One TCP connection: the pending question, if any, and what has arrived of its answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._parser = HttpResponseParser(self)  # calls the methods on_*
        self._waiter: asyncio.Future[_Outcome | None] | None = None
        self._idle_since_s = 0.0
        self._begun = False  # some of the answer has arrived
        self._in_body = False
        self._framed = False  # the headers say where the body ends; otherwise the end of the connection does
        self._bare_bytes = 0  # bytes received since the last part of a body
        self._parts: list[bytes] = []
        self._size = 0
        self._most_bytes = 0

    def usable(self) -> bool:
        return not self._transport.is_closing() and self._loop.time() - self._idle_since_s < _KEPT_S

    async def ask(self, request: bytes, most_bytes: int) -> _Outcome | None:
        """None if the connection ended before any of the answer arrived."""
        waiter: asyncio.Future[_Outcome | None] = self._loop.create_future()
        self._waiter = waiter
        self._most_bytes = most_bytes
        self._begun, self._bare_bytes = False, 0
        self._transport.write(request)
        try:
            return await waiter
        finally:
            if self._waiter is not None:  # cancelled: its answer must not be taken for the next question's
                self.close()

    def close(self) -> None:
        self._waiter = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is one, but is not typed so

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
        if self._waiter is None:  # unsolicited
            self.close()

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._in_body = self._parser.get_status_code() >= 200  # a 1xx response is not the answer yet

    def on_body(self, part: bytes) -> None:
        if self._waiter is None:
            return
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._most_bytes:
            self._fail("too_large")  # closes the connection: the rest is still arriving

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
