"""An HTTP/2 server connection without I/O: bytes in, events out, and what to send. Source: RFC 9113.

    PREFACE -> SETTINGS -> OPEN -> CLOSED

`rules` has the law. `receive` raises nothing, whatever the bytes are. Times are seconds of any monotonic clock, and
come with `tick`.
"""

from __future__ import annotations

from typing import Final

from fairlead.edge.http2 import frames as f
from fairlead.edge.http2 import settings
from fairlead.edge.http2.events import Event
from fairlead.edge.http2.frames import ErrorCode, PeerError
from fairlead.edge.http2.limits import Limits
from fairlead.edge.http2.rules import DRAIN_PING, HANDLERS, Phase, Rules
from fairlead.edge.http2.states import CLOSED, LOCAL_DONE, OPEN
from fairlead.edge.http2.streams import Stream

_unpack: Final = f.FRAME_HEADER.unpack_from
_KEEPALIVE_PING: Final = b"alive? \x00"


class Connection(Rules):
    """Feed `receive`, serve its events with `send_*`, write what `take_output` gives, close when `is_closed`."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits or Limits())
        self.fault: PeerError | None = None
        self._rest = b""
        self._drain_asked_s: float | None = None
        self._was_active = True
        self._active_s: float | None = None
        self._started_s: float | None = None
        self._ticked_s: float | None = None
        self._asked_s: float | None = None  # when an unanswered PING of ours went out
        self._out.append(settings.ours(self.limits))
        self._widen_connection()

    # ---- in -------------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.phase is Phase.CLOSED

    @property
    def has_more(self) -> bool:
        """Whole frames may be waiting: call `receive(b"")` in a later turn."""
        rest = self._rest
        if len(rest) < f.FRAME_HEADER_BYTES or self.phase is Phase.CLOSED:
            return False
        high, low, *_ = _unpack(rest)
        return len(rest) >= f.FRAME_HEADER_BYTES + int(high << 16 | low)

    def receive(self, data: bytes) -> list[Event]:
        """The next events, at most about `Limits.events_a_turn`. After a fault of the peer's: `is_closed`."""
        events = self._events = []
        if self.phase is Phase.CLOSED:
            return events
        self._was_active = True
        try:
            buffer, at = self._joined(data) if self._rest else (data, 0)
            if self.phase is Phase.PREFACE:
                at = self._preface(buffer)
            at = self._frames(buffer, at)
        except PeerError as fault:
            self._close(fault)
            self._rest = b""
        else:
            self._rest = buffer[at:]
        return events

    def _joined(self, data: bytes) -> tuple[bytes, int]:
        """What is to be read on from where. Only the frame that was cut is put together: `data` may be large."""
        rest = self._rest
        if len(rest) >= f.FRAME_HEADER_BYTES and self.phase is not Phase.PREFACE:
            high, low, *_ = _unpack(rest)
            missing = f.FRAME_HEADER_BYTES + (high << 16 | low) - len(rest)
            if 0 < missing <= len(data):
                self._frames(rest + data[:missing], 0)
                return data, missing
        return rest + data, 0

    def _preface(self, buffer: bytes) -> int:
        preface = f.PREFACE
        if not buffer.startswith(preface):
            if preface.startswith(buffer):
                return 0
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2; gRPC clients start with its preface")
        self.phase = Phase.SETTINGS
        return len(preface)

    def _frames(self, buffer: bytes, at: int) -> int:
        """Read whole frames from `at` on; where the next one starts."""
        if self.phase is Phase.PREFACE:
            return at
        end, events, most = len(buffer), self._events, self.limits.events_a_turn
        handlers, unknown = HANDLERS, Rules._on_unknown
        while end - at >= f.FRAME_HEADER_BYTES:
            high, low, kind, flags, stream_id = _unpack(buffer, at)
            length = high << 16 | low
            if length > f.MAX_FRAME_BYTES:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes; we take 16384")
            start = at + 9
            stop = start + length
            if stop > end or len(events) >= most:
                break
            if self._block is not None and kind != f.CONTINUATION:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "another frame amid a header block")
            if self.phase is Phase.SETTINGS:
                if kind != f.SETTINGS or flags & f.ACK:
                    raise PeerError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
                self.phase = Phase.OPEN
            if length == f.MAX_FRAME_BYTES and kind == f.DATA and not flags:
                at, payload = _run(buffer, at)
            else:
                at, payload = stop, buffer[start:stop]
            handlers.get(kind, unknown)(self, flags, stream_id & f.MAX_STREAM_ID, payload)
        return at

    # ---- out ------------------------------------------------------------------------------------------------------

    def send_headers(self, stream: Stream, block: bytes) -> None:
        """Headers of the answer. On a stream that has ended each of these does nothing."""
        if stream.state is not CLOSED:
            self._sender.headers(stream, block)

    def send_data(self, stream: Stream, data: bytes | memoryview) -> None:
        """DATA; what the peer's windows do not let through waits."""
        if stream.state is not CLOSED:
            try:
                self._sender.data(stream, data)
            except PeerError as fault:
                self._close(fault)

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """END_STREAM, once everything before has gone; a peer that has not ended its side gets RST_STREAM.

        Without any trailers (an empty `block`) the stream ends with an empty DATA.
        """
        if stream.state is CLOSED:
            return
        stream.trailers = block
        if stream.pending is None:
            self._finish(stream)

    def credit(self, stream: Stream, increment: int) -> None:
        """Let the peer send so many bytes more on `stream`."""
        if stream.state in (OPEN, LOCAL_DONE) and increment > 0:
            stream.receive_window += increment
            self._out.append(f.window_update(stream.id, increment))

    def drain(self) -> None:
        """Ask the peer to open no more streams. Those that are on their way are served: the last number follows once
        the peer has answered a PING."""
        if self.phase is not Phase.CLOSED and not self._draining:
            self._draining = True
            self._out.append(f.goaway(f.MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self._out.append(f.frame(f.PING, 0, 0, DRAIN_PING))

    @property
    def is_idle(self) -> bool:
        """Drained, and with nothing left to serve or to send."""
        return self.drained and not self._live

    def close(self) -> None:
        """End in peace: what still runs is cut off. The events of what ended are not reported any more."""
        self._close(PeerError(ErrorCode.NO_ERROR, ""))

    def charge(self, units: int) -> None:
        """Pay for work that the peer caused and that earned nothing."""
        try:
            self.work.spend(units)
        except PeerError as fault:
            self._close(fault)

    @property
    def output_pieces(self) -> int:
        """How many pieces `take_output` would put together; a long message is thousands."""
        return len(self._out)

    def take_pieces(self) -> list[bytes | memoryview]:
        """As `take_output`, not put together: each byte of a long message would be copied once more."""
        pieces = self._out.copy()
        self._out.clear()
        return pieces

    def take_output(self) -> bytes:
        """All that is to be written now."""
        out = self._out
        if len(out) == 1:
            return bytes(out.pop())
        whole = b"".join(out)
        out.clear()
        return whole

    def tick(self, now_s: float) -> list[Event]:
        """Once a second or so: timeouts, keepalive, and work that is allowed again."""
        events = self._events = []
        if self.phase is Phase.CLOSED:
            return events
        if self._started_s is None or self._ticked_s is None:
            self._started_s = self._ticked_s = now_s
        self.work.refill(now_s - self._ticked_s)
        self._ticked_s = now_s
        limits = self.limits
        if self._was_active or self._active_s is None:
            self._was_active, self._active_s, self._asked_s = False, now_s, None
        try:
            if self.phase is not Phase.OPEN and now_s - self._started_s > limits.preface_s:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "no preface in time")
            if not self._settings_acknowledged and now_s - self._started_s > limits.settings_ack_s:
                raise PeerError(ErrorCode.SETTINGS_TIMEOUT, "SETTINGS were not acknowledged in time")
            if self._asked_s is not None:
                if now_s - self._asked_s > limits.keepalive_answer_s:
                    raise PeerError(ErrorCode.NO_ERROR, "no answer to a PING")
            elif now_s - self._active_s > limits.keepalive_idle_s:
                self._asked_s = now_s
                self._out.append(f.frame(f.PING, 0, 0, _KEEPALIVE_PING))
            if self._draining and not self.drained:
                if self._drain_asked_s is None:
                    self._drain_asked_s = now_s
                elif now_s - self._drain_asked_s > limits.drain_answer_s:
                    self._last_goaway()
            for stream in list(self._sender.waiting.values()):
                if stream.stalled_since_s is None:
                    stream.stalled_since_s = now_s
                elif now_s - stream.stalled_since_s > limits.stalled_send_s:
                    self._fail_stream(stream, ErrorCode.CANCEL)
        except PeerError as fault:
            self._close(fault)
        return events

    def _close(self, fault: PeerError) -> None:
        if self.phase is Phase.CLOSED:
            return
        # Without its traceback, whose frames hold this connection and what it was sent.
        self.phase, self.fault = Phase.CLOSED, fault.with_traceback(None)
        self._out.append(f.goaway(self.streams.last_id, fault.code, fault.why))
        for stream in self._live.values():
            stream.state = CLOSED


def _run(buffer: bytes, at: int) -> tuple[int, bytes]:
    """The content of the full frame of DATA at `at` and of all that follow it with the same header, as if they were
    one: a long message comes as such a run. Where the next frame starts, and the content."""
    step = f.FRAME_HEADER_BYTES + f.MAX_FRAME_BYTES
    head, last = buffer[at : at + f.FRAME_HEADER_BYTES], len(buffer) - step
    start = at
    at += step
    while at <= last and buffer.startswith(head, at):
        at += step
    if at == start + step:
        return at, buffer[start + f.FRAME_HEADER_BYTES : at]
    view = memoryview(buffer)
    starts = range(start + f.FRAME_HEADER_BYTES, at, step)
    return at, b"".join([view[first : first + f.MAX_FRAME_BYTES] for first in starts])
