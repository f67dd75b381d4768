"""How a call ends: status codes, and the trailers that carry them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from fairlead.edge.http2.headers import header_block

_MOST_TEXT_BYTES: Final = 1024


class Status(IntEnum):
    """gRPC's codes; those that this server uses."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class StatusError(Exception):
    """A method ends its call with `status`; `text` is for the client."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


HEADERS: Final = header_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
OK_TRAILERS: Final = header_block(((b"grpc-status", b"0"),))
NOT_GRPC: Final = header_block(((b":status", b"415"), (b"content-type", b"text/plain; charset=utf-8")))
NOT_GRPC_TEXT: Final = b"This port speaks gRPC: Envoy's external processing and the health service.\n"


def trailers(status: Status, text: str) -> bytes:
    """Header block after an answer's headers."""
    if status is Status.OK:
        return OK_TRAILERS
    return header_block(((b"grpc-status", b"%d" % status), (b"grpc-message", _percent_encoded(text))))


def trailers_only(status: Status, text: str) -> bytes:
    """Header block that is the whole answer. `grpc-accept-encoding` says to a client that compressed why it failed."""
    encoding = header_block(((b"grpc-accept-encoding", b"identity"),)) if status is Status.UNIMPLEMENTED else b""
    return HEADERS + encoding + trailers(status, text)


def _percent_encoded(text: str) -> bytes:
    encoded = (b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in text.encode())
    return b"".join(encoded)[:_MOST_TEXT_BYTES]
