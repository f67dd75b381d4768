"""The calls of one connection: events of its streams in, messages to methods, replies whenever a method has them.

A method is a plain function that makes a `Receiver` for a call, at its first message: a stream that brings none costs
no state of the application. The receiver sends through its `Call`, at once or at any later time, until it finishes the
call or the client leaves.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fairlead.edge.grpc import status as s
from fairlead.edge.grpc.held import UnfinishedBytes
from fairlead.edge.grpc.reading import PREFIX, PREFIX_BYTES, MessageReader, Parts, announced_bytes
from fairlead.edge.grpc.status import Status, StatusError
from fairlead.edge.grpc.timeouts import timeout_s
from fairlead.edge.http2 import Connection, Event, Request, RequestData, RequestStarted
from fairlead.edge.http2.streams import Stream

_REFUSAL_WORK: Final = 2
_COPIED_BYTES: Final = 64 * 1024  # a longer message goes out apart from its prefix, and is not copied for it
_SLICED_BYTES: Final = 16 * 1024  # and a longer one that comes in is not copied to be without its prefix
_MESSAGE_S: Final = 30.0  # an unfinished message older than this ends its call


class Receiver(Protocol):
    """What a method does with one call."""

    def message(self, message: Any) -> None:
        """One message of the client, as the method's `read` has made it of its bytes."""

    def half_closed(self) -> None:
        """The client has sent all; the call goes on until it is finished."""

    def closed(self) -> None:
        """The call is over, whichever way; the last that is reported, once."""


@dataclass(frozen=True, slots=True)
class Method:
    """`ends_at_drain`: its calls last until the server stops, so a drain ends them and does not wait for them.

    `read` makes what a receiver gets of the parts of a message's bytes, and may raise StatusError.
    """

    make: Callable[[Call], Receiver]
    ends_at_drain: bool = False
    read: Callable[[Parts], Any] = b"".join


class Timer(Protocol):
    def cancel(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Services:
    """What the calls of all connections share."""

    methods: Mapping[str, Method]
    max_message_bytes: int
    call_later: Callable[[float, Callable[[], None]], Timer]
    held: UnfinishedBytes
    report_fault: Callable[[str], None]  # the traceback of a receiver that raised


class Call:
    """One call of a client. `send` and `finish` do nothing once it `is_open` no more."""

    __slots__ = ("_answered", "_calls", "_method", "_reader", "_receiver", "_stream", "_timer", "metadata")

    def __init__(self, calls: Calls, stream: Stream, method: Method, metadata: Mapping[bytes, bytes]) -> None:
        self.metadata = metadata  # the request's fields, the first value of each
        self._calls = calls
        self._stream = stream
        self._method = method
        self._receiver: Receiver | None = None
        self._reader: MessageReader | None = None  # for a message that comes in pieces
        self._timer: Timer | None = None
        self._answered = False  # the answer's headers are out

    @property
    def is_open(self) -> bool:
        return self._stream.app is self

    def send(self, message: bytes, body: Parts = ()) -> None:
        """One message to the client, written in this turn of the loop; `body` is the end of a long one."""
        if self._stream.app is not self:
            return
        calls = self._calls
        connection = calls.connection
        if not self._answered:
            self._answered = True
            connection.send_headers(self._stream, s.HEADERS)
        prefix = PREFIX.pack(0, len(message) + sum(map(len, body)))
        if body:
            connection.send_data(self._stream, prefix + message)
            for part in body:
                connection.send_data(self._stream, part)
        elif len(message) <= _COPIED_BYTES:
            connection.send_data(self._stream, prefix + message)
        else:
            connection.send_data(self._stream, prefix)
            connection.send_data(self._stream, message)
        if not calls.in_turn:
            calls.wake()

    def finish(self, status: Status = Status.OK, text: str = "") -> None:
        """End the call. Messages sent before still arrive before its status."""
        if self._stream.app is not self:
            return
        calls = self._calls
        if not self._answered and status is not Status.OK:
            block = s.trailers_only(status, text)
        else:
            if not self._answered:
                calls.connection.send_headers(self._stream, s.HEADERS)
            block = s.trailers(status, text)
        calls.connection.send_trailers(self._stream, block)
        self._over()
        if not calls.in_turn:
            calls.wake()

    def _over(self) -> None:
        """Nothing more is sent or received: notify the receiver, once.

        Receiver and call name each other. What the receiver holds, a body of 32 MB at times, must not wait for the
        garbage collector to find that out.
        """
        self._stream.app = None
        timer, reader, receiver = self._timer, self._reader, self._receiver
        self._timer = self._reader = self._receiver = None
        if timer is not None:
            timer.cancel()
        if reader is not None:
            reader.drop()
        if receiver is not None:
            self._calls.guarded(receiver.closed)


class Calls:
    """Feed `handle` with the connection's events. `wake` is called when something is sent outside of it."""

    def __init__(self, connection: Connection, services: Services, wake: Callable[[], None]) -> None:
        self.connection = connection
        self.wake = wake
        self.in_turn = False
        self._services = services
        self._methods = {path.encode(): method for path, method in services.methods.items()}
        self._most_bytes = services.max_message_bytes
        self._held = UnfinishedBytes(max(services.held.limit_bytes // 2, services.max_message_bytes), services.held)
        self._window_bytes = connection.limits.stream_window_bytes

    def handle(self, events: Iterable[Event]) -> None:
        self.in_turn = True
        try:
            for event in events:
                stream = event.stream
                if type(event) is RequestData:
                    if stream.app is not None:
                        self._on_data(stream, stream.app, event.data, event.ended)
                    elif stream.trailers is None and (event.ended or stream.receive_window < self._window_bytes >> 1):
                        self._refuse_http(stream)
                elif type(event) is RequestStarted:
                    self._start(stream, event.request, event.ended)
                elif stream.app is not None:
                    stream.app._over()
        finally:
            self.in_turn = False

    def tick(self, now_s: float) -> None:
        """Once a second or so: end calls whose message does not come to its end."""
        for call in self._open_calls():
            reader = call._reader
            if reader is None or not reader.missing_bytes:
                continue
            if reader.stalled_since_s is None:
                reader.stalled_since_s = now_s
            elif now_s - reader.stalled_since_s > _MESSAGE_S:
                call.finish(Status.DEADLINE_EXCEEDED, f"a message was not finished in {_MESSAGE_S:g} s")

    def end_at_drain(self) -> None:
        """End the calls that would live for as long as the server."""
        for call in self._open_calls():
            if call._method.ends_at_drain:
                call.finish(Status.UNAVAILABLE, "the server is draining")

    def close(self) -> None:
        """The connection is gone."""
        for call in self._open_calls():
            call._over()

    def guarded(self, act: Callable[[], None]) -> bool:
        """Run `act`; an error of the receiver is reported and ends its call only. Whether there was none."""
        try:
            act()
        except Exception:
            self._services.report_fault(traceback.format_exc(limit=-8))
            return False
        return True

    def _open_calls(self) -> list[Call]:
        return [stream.app for stream in self.connection.streams.live.values() if stream.app is not None]

    def _start(self, stream: Stream, request: Request, ended: bool) -> None:
        fields = request.fields
        if request.method != b"POST" or not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            if ended:
                self._refuse_http(stream)
            return
        method = self._methods.get(request.path)
        if method is None:
            path = request.path.decode("latin-1")
            self.connection.charge(_REFUSAL_WORK)
            block = s.trailers_only(Status.UNIMPLEMENTED, f"there is no method {path}")
            self.connection.send_trailers(stream, block)
            return
        call = stream.app = Call(self, stream, method, fields)
        if b"grpc-timeout" in fields:
            self._set_deadline(call, fields[b"grpc-timeout"])
        if ended and call.is_open:
            self._on_data(stream, call, b"", True)

    def _set_deadline(self, call: Call, text: bytes) -> None:
        seconds = timeout_s(text)
        if seconds is None:
            call.finish(Status.INTERNAL, "grpc-timeout is not a timeout")
            return

        def expire() -> None:
            call.finish(Status.DEADLINE_EXCEEDED, "the deadline is over")

        call._timer = self._services.call_later(seconds, expire)

    def _refuse_http(self, stream: Stream) -> None:
        """A request that is not gRPC, whole or too long to wait for its end: a sentence for whoever sent it."""
        self.connection.charge(_REFUSAL_WORK)
        self.connection.send_headers(stream, s.NOT_GRPC)
        self.connection.send_data(stream, s.NOT_GRPC_TEXT)
        self.connection.send_trailers(stream, b"")

    def _on_data(self, stream: Stream, call: Call, data: bytes, ended: bool) -> None:
        try:
            reader = call._reader
            size = len(data) - PREFIX_BYTES
            if reader is None and size >= 0 and announced_bytes(data, 0, self._most_bytes) == size:
                self.connection.work.earn_message()  # one whole message: the common case
                whole = data[PREFIX_BYTES:] if size <= _SLICED_BYTES else memoryview(data)[PREFIX_BYTES:]
                self._deliver(stream, call, (whole,))
            elif data:
                self._read(stream, call, data)
        except StatusError as error:
            call.finish(error.status, error.text)
            return
        if ended:
            self._half_closed(call)
        elif stream.receive_window < self._window_bytes >> 1:
            self._open_window(stream, call)

    def _read(self, stream: Stream, call: Call, data: bytes) -> None:
        """Messages that come in pieces, or several at once."""
        reader = call._reader
        if reader is None:
            reader = call._reader = MessageReader(self._most_bytes, self._held)
        for count, parts in enumerate(reader.feed(data)):
            if count:
                self.connection.charge(1)
            else:
                self.connection.work.earn_message()
            if self.connection.is_closed:
                return
            self._deliver(stream, call, parts)
            if stream.app is not call:
                return

    def _open_window(self, stream: Stream, call: Call) -> None:
        """A long message gets, at once, all the window that it needs; otherwise the window is filled again."""
        missing = call._reader.missing_bytes if call._reader is not None else 0
        self.connection.credit(stream, missing + self._window_bytes - stream.receive_window)

    def _deliver(self, stream: Stream, call: Call, parts: Parts) -> None:
        stream.earned = True
        try:
            if call._receiver is None:
                call._receiver = call._method.make(call)
            call._receiver.message(call._method.read(parts))
        except StatusError as error:
            call.finish(error.status, error.text)
        except Exception:
            self._services.report_fault(traceback.format_exc(limit=-8))
            call.finish(Status.INTERNAL, "a fault of the server")

    def _half_closed(self, call: Call) -> None:
        if not call.is_open:
            return
        if call._reader is not None and call._reader.missing_bytes:
            call.finish(Status.INVALID_ARGUMENT, "the client ended amid a message")
        elif call._receiver is None:
            call.finish(Status.INVALID_ARGUMENT, "the client ended without a message")
        elif not self.guarded(call._receiver.half_closed):
            call.finish(Status.INTERNAL, "a fault of the server")
