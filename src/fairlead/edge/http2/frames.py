"""Frames as bytes: types, flags, error codes, and how each frame that a server sends is written.

Source: RFC 9113, sections 4, 6 and 7. What a received frame means is in `connection`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
MAX_FRAME_BYTES: Final = 16_384  # what we announce, by leaving the default: Envoy sends no larger ones either
MAX_WINDOW: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

FRAME_HEADER: Final = Struct(">BHBBL")  # the length's first byte, its other two, type, flags, stream
UINT32: Final = Struct(">L")
_GOAWAY: Final = Struct(">BHBBLLL")
_ONE_UINT32: Final = Struct(">BHBBLL")  # RST_STREAM, WINDOW_UPDATE


class ErrorCode(IntEnum):
    """Section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class PeerError(Exception):
    """The peer broke a rule in a way that ends the connection. Raised only inside the core."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return FRAME_HEADER.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id) + payload


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return _ONE_UINT32.pack(0, 4, RST_STREAM, 0, stream_id, code)


def window_update(stream_id: int, increment: int) -> bytes:
    return _ONE_UINT32.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


def goaway(last_stream_id: int, code: ErrorCode, why: str = "") -> bytes:
    debug = why.encode()
    return _GOAWAY.pack(0, 8 + len(debug), GOAWAY, 0, 0, last_stream_id, code) + debug


def unpadded(flags: int, payload: bytes) -> bytes:
    """The content of a DATA or HEADERS frame. Raises PeerError for a frame whose padding is longer than it."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a length of its padding")
    padding = payload[0]
    if padding >= len(payload):
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - padding]
