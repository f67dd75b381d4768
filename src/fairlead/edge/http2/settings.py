"""SETTINGS: what we announce, and what a peer's mean. Source: RFC 9113, section 6.5."""

from __future__ import annotations

from struct import Struct
from typing import Final

from fairlead.edge.http2.frames import DEFAULT_WINDOW, MAX_WINDOW, SETTINGS, ErrorCode, PeerError, frame
from fairlead.edge.http2.limits import Limits

_ENTRY: Final = Struct(">HL")
HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6
_LEAST_FRAME_BYTES: Final = 16_384
_MOST_FRAME_BYTES: Final = 2**24 - 1


def ours(limits: Limits) -> bytes:
    """Our SETTINGS frame. Without a dynamic table a header block means the same wherever it stands."""
    entries = (
        (HEADER_TABLE_SIZE, 0),
        (MAX_CONCURRENT_STREAMS, limits.concurrent_streams),
        (INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
        (MAX_HEADER_LIST_SIZE, limits.header_list_bytes),
    )
    return frame(SETTINGS, 0, 0, b"".join(_ENTRY.pack(*entry) for entry in entries))


class PeerSettings:
    """Those that a server heeds; it pushes nothing and sends no header that a peer could find too long."""

    def __init__(self) -> None:
        self.initial_window = DEFAULT_WINDOW
        self.max_frame_bytes = _LEAST_FRAME_BYTES

    def update(self, payload: bytes) -> int:
        """Apply a frame's entries in order; by how much the windows of open streams change. Raises PeerError."""
        if len(payload) % _ENTRY.size:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a length that is no multiple of 6")
        window_before = self.initial_window
        for identifier, value in _ENTRY.iter_unpack(payload):
            if identifier == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1")
                self.initial_window = value
            elif identifier == MAX_FRAME_SIZE:
                if not _LEAST_FRAME_BYTES <= value <= _MOST_FRAME_BYTES:
                    raise PeerError(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE out of its range")
                self.max_frame_bytes = min(value, 4 * _LEAST_FRAME_BYTES)
            elif identifier == ENABLE_PUSH and value > 1:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
        return self.initial_window - window_before
