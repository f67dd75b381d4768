"""The other side of a connection, without sockets: writes any frame, legal or not, and reads what the core sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpack import Decoder, Encoder

from fairlead.edge.http2 import Connection, ErrorCode, Event, Limits, RequestData, RequestStarted
from fairlead.edge.http2 import frames as f
from fairlead.edge.http2.headers import header_block

GRPC_HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/service/Method"),
    (b":authority", b"fairlead"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
BLOCK = header_block(GRPC_HEADERS)


@dataclass(frozen=True)
class Sent:
    """One frame that the core sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def number(self) -> int:
        """The first four bytes: an error code, an increment, a last stream."""
        return int.from_bytes(self.payload[:4], "big")

    @property
    def goaway_code(self) -> ErrorCode:
        return ErrorCode(int.from_bytes(self.payload[4:8], "big"))


def frames_of(data: bytes) -> list[Sent]:
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        number = int.from_bytes(data[5:9], "big")
        found.append(Sent(data[3], data[4], number, data[9 : 9 + length]))
        data = data[9 + length :]
    return found


class Peer:
    """A connection past its preface and SETTINGS, unless `greeted` is false. It keeps all events and frames."""

    def __init__(self, limits: Limits | None = None, *, greeted: bool = True) -> None:
        self.connection = Connection(limits)
        self.events: list[Event] = []
        self.sent: list[Sent] = []
        self.encoder = Encoder()
        self.decoder: Any = Decoder()
        self.collect()
        if greeted:
            self.say(f.PREFACE, f.frame(f.SETTINGS, 0, 0), f.frame(f.SETTINGS, f.ACK, 0))
            self.sent.clear()

    def say(self, *parts: bytes) -> list[Sent]:
        """Send these; what the core answers."""
        self.events += self.connection.receive(b"".join(parts))
        while self.connection.has_more:
            self.events += self.connection.receive(b"")
        return self.collect()

    def collect(self) -> list[Sent]:
        new = frames_of(self.connection.take_output())
        self.sent += new
        return new

    def open(self, stream_id: int = 1, *, ends: bool = False) -> list[Sent]:
        return self.say(headers(stream_id, ends=ends))

    # ---- what came of it ------------------------------------------------------------------------------------------

    def stream(self, stream_id: int = 1) -> Any:
        return next(e.stream for e in self.events if isinstance(e, RequestStarted) and e.stream.id == stream_id)

    def data_of(self, stream_id: int = 1) -> bytes:
        return b"".join(e.data for e in self.events if isinstance(e, RequestData) and e.stream.id == stream_id)

    def has_ended(self, stream_id: int = 1) -> bool:
        return any(
            e.ended for e in self.events if isinstance(e, RequestData | RequestStarted) and e.stream.id == stream_id
        )

    @property
    def goaway(self) -> ErrorCode | None:
        """The connection's error, if it ended."""
        if not self.connection.is_closed:
            return None
        return next(each.goaway_code for each in reversed(self.sent) if each.kind == f.GOAWAY)

    def reset_code(self, stream_id: int = 1) -> ErrorCode | None:
        for each in self.sent:
            if (each.kind, each.stream_id) == (f.RST_STREAM, stream_id):
                return ErrorCode(each.number)
        return None


def headers(stream_id: int, block: bytes = BLOCK, *, ends: bool = False, flags: int = f.END_HEADERS) -> bytes:
    return f.frame(f.HEADERS, flags | (f.END_STREAM if ends else 0), stream_id, block)


def data(stream_id: int, payload: bytes = b"", *, ends: bool = False, flags: int = 0) -> bytes:
    return f.frame(f.DATA, flags | (f.END_STREAM if ends else 0), stream_id, payload)


def message(payload: bytes) -> bytes:
    """With gRPC's prefix."""
    return b"\x00" + len(payload).to_bytes(4, "big") + payload


def setting(identifier: int, value: int) -> bytes:
    return f.frame(f.SETTINGS, 0, 0, identifier.to_bytes(2, "big") + value.to_bytes(4, "big"))


def without(name: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(field for field in GRPC_HEADERS if field[0] != name)
