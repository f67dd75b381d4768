"""The rules: what each received frame means, and what breaks which rule. Source: RFC 9113.

A frame is at most 16,384 bytes; the first is SETTINGS; while a header block is open only its CONTINUATION may follow.
What breaks a rule of the connection ends it with GOAWAY (`PeerError`), what breaks a rule of a stream ends that stream
with RST_STREAM; which is which stands at each rule below, and for streams in `states`. Whatever earns nothing is paid
from a budget of work.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from fairlead.edge.http2 import frames as f
from fairlead.edge.http2.events import Event, RequestData, RequestStarted, StreamEnded
from fairlead.edge.http2.frames import ErrorCode, PeerError
from fairlead.edge.http2.headers import HeaderReader, trailers_fault
from fairlead.edge.http2.limits import Limits
from fairlead.edge.http2.sending import Sender
from fairlead.edge.http2.states import CLOSED, DATA_IN, END_IN, END_OUT, FAULTS, HEADERS_IN, NEXT, Ended
from fairlead.edge.http2.streams import Stream, Streams
from fairlead.edge.http2.work import WorkBudget

DRAIN_PING: Final = b"drained?"
_SMALL_DATA_BYTES: Final = 32
# Units of work, of about 2 us.
_FRAME, _STREAM_FAULT, _WASTED_STREAM = 1, 4, 6
_PING_BYTES, _PRIORITY_BYTES, _GOAWAY_BYTES = 8, 5, 8


class Phase(Enum):
    PREFACE = auto()
    SETTINGS = auto()
    OPEN = auto()
    CLOSED = auto()


class Rules:
    """A connection's state, and a method for each type of frame. Each may raise PeerError."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.phase = Phase.PREFACE
        self.streams = Streams()
        self.work = WorkBudget(limits)
        self.refused_streams = 0
        self.drained = False  # the last GOAWAY is out: streams above its number are not served
        self._live = self.streams.live
        self._sender = Sender(limits)
        self._out = self._sender.out
        self._headers = HeaderReader(limits)
        self._events: list[Event] = []
        self._receive_window = f.DEFAULT_WINDOW
        self._low_window = limits.connection_window_bytes >> 1  # below it, the window is filled again
        self._block: tuple[int, int, list[bytes]] | None = None  # of HEADERS whose CONTINUATION is to come
        self._settings_acknowledged = False
        self._draining = False

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        length = len(payload)
        self._receive_window = window = self._receive_window - length
        if window < self._low_window:
            if window < 0:
                raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
            self._widen_connection()
        if length < _SMALL_DATA_BYTES:
            self.work.spend(_FRAME)
        stream = self._live.get(stream_id)
        if stream is None or NEXT[stream.state][DATA_IN] is None:
            self._stray(stream_id)
            return
        stream.receive_window = window = stream.receive_window - length
        if window < 0:
            self._fail_stream(stream, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if flags & f.PADDED:
            payload = f.unpadded(flags, payload)
        if stream.body_left is not None:
            stream.body_left -= len(payload)
            if stream.body_left < 0:
                self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR)
                return
        if flags & f.END_STREAM:
            self._ended(stream, payload)
        elif payload:
            self._events.append(RequestData(stream, payload, False))

    def _ended(self, stream: Stream, payload: bytes) -> None:
        if stream.body_left:
            self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.move(END_IN)
        if stream.state is CLOSED:
            self.streams.close(stream, Ended.BY_BOTH)
        self._events.append(RequestData(stream, payload, True))

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that a client cannot open")
        if flags & (f.PADDED | f.PRIORITISED):
            payload = f.unpadded(flags, payload)
            if flags & f.PRIORITISED:
                if len(payload) < _PRIORITY_BYTES:
                    raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for their priority")
                if f.UINT32.unpack_from(payload)[0] & f.MAX_STREAM_ID == stream_id:
                    raise PeerError(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
                payload = payload[_PRIORITY_BYTES:]
        if flags & f.END_HEADERS:
            self._on_header_block(flags, stream_id, payload)
        else:
            self._block = stream_id, flags, [payload]

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        self.work.spend(_FRAME)
        _, first_flags, parts = self._block
        parts.append(payload)
        is_too_long = sum(map(len, parts)) > self.limits.header_block_bytes
        if is_too_long or len(parts) > self.limits.continuations + 1:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "a header block too long")
        if flags & f.END_HEADERS:
            self._block = None
            self._on_header_block(first_flags, stream_id, b"".join(parts))

    def _on_header_block(self, flags: int, stream_id: int, block: bytes) -> None:
        stream, streams = self._live.get(stream_id), self.streams
        if stream is not None:
            self._on_trailers(stream, flags, block)
            return
        request = self._headers.request(block)  # of a stream that is refused, too: it may change HPACK's table
        if stream_id <= streams.last_id:
            if streams.was_skipped(stream_id):
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream of a lower number than the last")
            self._stray(stream_id)
            return
        if self.drained:
            self.work.spend(_WASTED_STREAM)
            return
        streams.open(stream_id)
        if request.malformed:
            self._reset_unborn(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif len(self._live) >= self.limits.concurrent_streams:
            self.refused_streams += 1
            self._reset_unborn(stream_id, ErrorCode.REFUSED_STREAM)
        else:
            new = Stream(stream_id, self.limits.stream_window_bytes, self._sender.peer.initial_window)
            new.body_left = request.content_length
            ended = bool(flags & f.END_STREAM)
            if ended:
                if new.body_left:
                    self._reset_unborn(stream_id, ErrorCode.PROTOCOL_ERROR)
                    return
                new.move(END_IN)
            self._live[stream_id] = new
            self._events.append(RequestStarted(new, request, ended))

    def _on_trailers(self, stream: Stream, flags: int, block: bytes) -> None:
        fields = self._headers.decode(block)
        if not stream.move(HEADERS_IN):
            self._fail_stream(stream, ErrorCode.STREAM_CLOSED)
        elif not flags & f.END_STREAM or trailers_fault(fields):
            self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._ended(stream, b"")

    def _on_rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != f.UINT32.size:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes")
        stream = self._live.get(stream_id)
        if stream is None:
            self._must_have_lived(stream_id)
            self.work.spend(_FRAME)
            return
        if not stream.earned:
            self.work.spend(_WASTED_STREAM)
        self._sender.forget(stream)
        self.streams.close(stream, Ended.BY_PEER)
        self._events.append(StreamEnded(stream))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        self.work.spend(_FRAME)
        if flags & f.ACK:
            if payload:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with content")
            if not self._settings_acknowledged:
                self._settings_acknowledged = True
                self._headers.settings_acknowledged()
            return
        widened = self._sender.peer.update(payload)
        self._out.append(f.frame(f.SETTINGS, f.ACK, 0))  # before the DATA that new windows let go
        if widened:
            self.work.spend(len(self._live) >> 2)
            for stream in list(self._live.values()):
                if stream.send_window + widened > f.MAX_WINDOW:
                    raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS let a window grow beyond 2^31-1")
                if self._sender.widen_stream(stream, widened):
                    self._finish(stream)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != _PING_BYTES:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "PING is not 8 bytes")
        self.work.spend(_FRAME)
        if not flags & f.ACK:
            self._out.append(f.frame(f.PING, f.ACK, 0, payload))
        elif payload == DRAIN_PING and self._draining:
            self._last_goaway()

    def _on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < _GOAWAY_BYTES:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is too short")
        self.work.spend(_FRAME)  # a client that goes away finishes its streams and closes; we open none

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != f.UINT32.size:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes")
        self.work.spend(_FRAME)
        increment = f.UINT32.unpack(payload)[0] & f.MAX_WINDOW
        if not stream_id:
            if not increment:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            for stream in self._sender.widen(increment):
                self._finish(stream)
            return
        live = self._live.get(stream_id)
        if live is None:
            self._must_have_lived(stream_id)
        elif not increment:
            self._fail_stream(live, ErrorCode.PROTOCOL_ERROR)
        elif live.send_window + increment > f.MAX_WINDOW:
            self._fail_stream(live, ErrorCode.FLOW_CONTROL_ERROR)
        elif self._sender.widen_stream(live, increment):
            self._finish(live)

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on no stream")
        if len(payload) != _PRIORITY_BYTES:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not 5 bytes")
        if f.UINT32.unpack_from(payload)[0] & f.MAX_STREAM_ID == stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        self.work.spend(_FRAME)

    def _on_unknown(self, *_: object) -> None:
        self.work.spend(_FRAME)  # and ignore it, as section 4.1 says

    def _on_push_promise(self, *_: object) -> None:
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    # ---- how a stream ends ----------------------------------------------------------------------------------------

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        if stream.state is not CLOSED:
            self._out.append(f.rst_stream(stream.id, code))
            self._sender.forget(stream)
            self.streams.close(stream, Ended.BY_US)

    def _finish(self, stream: Stream) -> None:
        """Everything of `stream` has gone: its trailers may, if it has any yet."""
        if stream.trailers is None:
            return
        self._sender.end(stream, stream.trailers)
        stream.move(END_OUT)
        if stream.state is CLOSED:
            self.streams.close(stream, Ended.BY_BOTH)
        else:
            self.reset(stream, ErrorCode.NO_ERROR)

    def _stray(self, stream_id: int) -> None:
        """DATA or HEADERS for a stream that may have no more of them."""
        self.work.spend(_FRAME)
        live = self._live.get(stream_id)
        if live is not None:
            self._fail_stream(live, ErrorCode.STREAM_CLOSED)
            return
        if self.drained and stream_id > self.streams.last_id:
            return  # crossed our GOAWAY
        self._must_have_lived(stream_id)
        fault = FAULTS[self.streams.how_ended(stream_id)]
        if fault is None:
            return
        code, ends_connection = fault
        if ends_connection:
            raise PeerError(code, "a frame for a stream that both sides have ended")
        self._reset_unborn(stream_id, code)

    def _must_have_lived(self, stream_id: int) -> None:
        if not stream_id & 1 or (stream_id > self.streams.last_id and not self.drained):
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a frame for a stream that was never opened")

    def _fail_stream(self, stream: Stream, code: ErrorCode) -> None:
        self.reset(stream, code)
        self._events.append(StreamEnded(stream))
        self.work.spend(_STREAM_FAULT)

    def _reset_unborn(self, stream_id: int, code: ErrorCode) -> None:
        self._out.append(f.rst_stream(stream_id, code))
        self.streams.remember(stream_id, Ended.BY_US)
        self.work.spend(_WASTED_STREAM)

    def _widen_connection(self) -> None:
        increment = self.limits.connection_window_bytes - self._receive_window
        self._receive_window += increment
        self._out.append(f.window_update(0, increment))

    def _last_goaway(self) -> None:
        self.drained = True
        self._out.append(f.goaway(self.streams.last_id, ErrorCode.NO_ERROR))


HANDLERS: Final[dict[int, Callable[[Rules, int, int, bytes], None]]] = {
    f.DATA: Rules._on_data,
    f.HEADERS: Rules._on_headers,
    f.PRIORITY: Rules._on_priority,
    f.RST_STREAM: Rules._on_rst_stream,
    f.SETTINGS: Rules._on_settings,
    f.PUSH_PROMISE: Rules._on_push_promise,
    f.PING: Rules._on_ping,
    f.GOAWAY: Rules._on_goaway,
    f.WINDOW_UPDATE: Rules._on_window_update,
    f.CONTINUATION: Rules._on_continuation,
}
