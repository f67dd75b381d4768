"""One connection on asyncio: bytes between a transport and the core, and its timers."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from fairlead.edge.grpc import Calls, Services
from fairlead.edge.http2 import Connection, Limits

_WRITE_BUFFER_BYTES: Final = 1 << 20  # more, and nothing is read until the peer has read
_TURN_BYTES: Final = 1 << 20  # libuv would read 8 MB of one connection before it looks at another
_LINGERING_BYTES: Final = 1 << 20
_MANY_PIECES: Final = 256  # of a message of 2 MB, as a frame is two; whatever else a turn sends is fewer, or short
_LINGERING_S: Final = 1.0


class Owner(Protocol):
    """Whoever keeps the connections: notified when one is made, which it may refuse, and when one is gone."""

    def opened(self, protocol: EdgeProtocol) -> bool: ...

    def lost(self, protocol: EdgeProtocol) -> None: ...


class EdgeProtocol(asyncio.Protocol):
    """What is sent in one turn of the loop leaves in one write. A peer that stops reading is no longer read from, so
    that what it makes us hold is bounded, and is closed after a while."""

    def __init__(self, owner: Owner, services: Services, limits: Limits) -> None:
        self._owner = owner
        self._limits = limits
        self._connection = Connection(limits)
        self._calls = Calls(self._connection, services, self._wake)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._flush_is_due = False
        self._more_is_due = False  # frames that were read, or bytes that were not, wait for another turn
        self._turn_bytes = 0  # read since others had theirs
        self._paused_since_s: float | None = None  # the transport's buffer is full
        self._is_paused = False
        self._lingering_bytes = 0  # that may still come, after our GOAWAY, and are dropped
        self._is_stalled = False  # closed, as the peer read nothing

    @property
    def running(self) -> int:
        """Streams that are not over."""
        return len(self._connection.streams.live)

    @property
    def refused_streams(self) -> int:
        return self._connection.refused_streams

    @property
    def fault(self) -> str:
        """Why we closed the connection, as an error code of HTTP/2 or `stalled`; empty if we had no reason to."""
        fault = self._connection.fault
        return "stalled" if self._is_stalled else fault.code.name.lower() if fault is not None and fault.why else ""

    # ---- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._owner.opened(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._lingering_bytes:
            self._lingering_bytes = max(0, self._lingering_bytes - len(data))
            if not self._lingering_bytes:
                self.abort()
            return
        self._calls.handle(self._connection.receive(data))
        self._flush()
        self._turn_bytes += len(data)
        if (self._turn_bytes > _TURN_BYTES or self._connection.has_more) and not self._more_is_due:
            self._more_is_due = True
            self._update_reading()
            self._loop.call_soon(self._go_on)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_paused, self._paused_since_s = False, None
        if self._more_is_due:
            self._loop.call_soon(self._go_on)
        self._update_reading()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._calls.close()
        self._owner.lost(self)

    # ---- the server's ---------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Once a second."""
        self._calls.handle(self._connection.tick(now_s))
        self._calls.tick(now_s)
        self._flush()
        if self._is_paused:
            if self._paused_since_s is None:
                self._paused_since_s = now_s
            elif now_s - self._paused_since_s > self._limits.stalled_send_s:
                self._is_stalled = True
                self.abort()

    def drain(self) -> None:
        """No new streams; the connection closes after its last one."""
        self._calls.end_at_drain()
        self._connection.drain()
        self._flush()

    def close(self) -> None:
        """Cut off what still runs, and say so."""
        self._connection.close()
        self._flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- within ---------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._transport is None or self._is_paused or not self._more_is_due:
            return  # a peer that does not read what it was sent waits with what it wants
        self._more_is_due, self._turn_bytes = False, 0
        self.data_received(b"")
        if not self._more_is_due:
            self._update_reading()

    def _update_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_paused or self._more_is_due:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _wake(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        transport, connection = self._transport, self._connection
        if transport is None:
            return
        pieces = connection.output_pieces
        if pieces:
            if pieces < _MANY_PIECES:
                transport.write(connection.take_output())
            else:
                transport.writelines(connection.take_pieces())
            if self._is_paused and transport.get_write_buffer_size() > self._limits.waiting_send_bytes:
                self._is_stalled = True
                transport.abort()
                return
        if connection.is_closed and not self._lingering_bytes:
            self._linger(transport)
        elif connection.is_idle:
            transport.close()

    def _linger(self, transport: asyncio.Transport) -> None:
        """Closing with bytes unread would make the kernel reset the connection, and the peer lose why it was closed."""
        self._calls.close()
        if not transport.can_write_eof():
            transport.close()
            return
        self._lingering_bytes = _LINGERING_BYTES
        try:
            transport.write_eof()
        except OSError:  # asyncio's own loop raises where the peer has gone; uvloop reports the connection as lost
            transport.abort()
            return
        self._loop.call_later(_LINGERING_S, self.abort)
