"""What goes out: frames in order, and DATA only as far as the peer's windows reach. Source: RFC 9113, section 5.2."""

from __future__ import annotations

from collections import deque
from typing import Final

from fairlead.edge.http2.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    MAX_WINDOW,
    ErrorCode,
    PeerError,
)
from fairlead.edge.http2.limits import Limits
from fairlead.edge.http2.settings import PeerSettings
from fairlead.edge.http2.streams import Stream

_pack: Final = FRAME_HEADER.pack


class Sender:
    """`out` is what is to be written next; `waiting` the streams whose DATA waits for a window, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.out: list[bytes | memoryview] = []
        self.peer = PeerSettings()
        self.window = DEFAULT_WINDOW
        self.waiting: dict[int, Stream] = {}
        self.waiting_bytes = 0
        self._for_connection: dict[int, Stream] = {}  # those whom only the connection's window holds back

    def headers(self, stream: Stream, block: bytes) -> None:
        self.out.append(_pack(0, len(block), HEADERS, END_HEADERS, stream.id) + block)

    def end(self, stream: Stream, block: bytes) -> None:
        """END_STREAM, with trailers if there are any."""
        if block:
            self.out.append(_pack(0, len(block), HEADERS, END_HEADERS | END_STREAM, stream.id) + block)
        else:
            self.out.append(_pack(0, 0, DATA, END_STREAM, stream.id))

    def data(self, stream: Stream, data: bytes | memoryview) -> None:
        """Send, or keep until a window opens. Raises PeerError when the peer lets too much wait."""
        length = len(data)
        if stream.pending is None and length <= self.window and length <= stream.send_window:
            frame_bytes = self.peer.max_frame_bytes
            if length <= frame_bytes:
                self.window -= length
                stream.send_window -= length
                self.out.append(_pack(length >> 16, length & 0xFFFF, DATA, 0, stream.id) + data)
                return
        if stream.pending is None:
            stream.pending = deque()
            self.waiting[stream.id] = stream
        stream.pending.append(memoryview(data))  # what is left of a long one is not copied at each window
        stream.pending_bytes += length
        self.waiting_bytes += length
        self._pump(stream)
        if self.waiting_bytes > self._limits.waiting_send_bytes:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too much waits for flow-control windows")

    def forget(self, stream: Stream) -> None:
        """The stream is closed: nothing of it waits any more."""
        if stream.pending is not None:
            self.waiting_bytes -= stream.pending_bytes
            stream.pending, stream.pending_bytes = None, 0
            self.waiting.pop(stream.id, None)
            self._for_connection.pop(stream.id, None)

    def widen(self, increment: int) -> list[Stream]:
        """WINDOW_UPDATE of the connection; the streams whose last bytes it let go."""
        self.window += increment
        if self.window > MAX_WINDOW:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window grew beyond 2^31-1")
        done = []
        while self.window > 0 and self._for_connection:
            stream = next(iter(self._for_connection.values()))
            if self._pump(stream):
                done.append(stream)
        return done

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """A larger (or smaller) window of one stream; whether its last waiting bytes went."""
        stream.send_window += increment
        return stream.pending is not None and self._pump(stream)

    def _pump(self, stream: Stream) -> bool:
        """Send of what waits on `stream` as much as may go; whether all of it went."""
        pending = stream.pending
        assert pending is not None
        frame_bytes = self.peer.max_frame_bytes
        before = self.window
        while pending and (room := min(self.window, stream.send_window)) > 0:
            data = pending.popleft()
            allowed = min(room, len(data))
            for start in range(0, allowed, frame_bytes):
                part = data[start : min(start + frame_bytes, allowed)]
                length = len(part)
                self.out += (_pack(length >> 16, length & 0xFFFF, DATA, 0, stream.id), part)
            if allowed < len(data):
                pending.appendleft(data[allowed:])
            self.window -= allowed
            stream.send_window -= allowed
            stream.pending_bytes -= allowed
            self.waiting_bytes -= allowed
        if self.window != before:
            stream.stalled_since_s = None
        if not pending:
            stream.pending = None
            self.waiting.pop(stream.id, None)
            self._for_connection.pop(stream.id, None)
            return True
        if stream.send_window > 0:
            self._for_connection[stream.id] = stream
        else:
            self._for_connection.pop(stream.id, None)
        return False
