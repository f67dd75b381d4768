"""How many bytes of request bodies are held at this moment, over all streams, and the most that may be.

A body is held while its parts come in and while it waits to be read. Each is bounded by the gateway's limit for one
body; a thousand clients that send slowly would still hold a thousand times that.
"""

from __future__ import annotations

from typing import Final

DEFAULT_MOST_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 100  # the overhead of a piece: a client may send one byte at a time


class HeldBytes:
    """Written by streams on one event loop."""

    __slots__ = ("bytes", "most_bytes", "refused")

    def __init__(self, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self.refused = 0  # bodies, for lack of room

    def take(self, part_bytes: int, pieces: int) -> int:
        """Reserve room for a part; the bytes to give back later, 0 if there is no room."""
        taken = part_bytes + _PIECE_BYTES * pieces
        if self.bytes + taken > self.most_bytes:
            self.refused += 1
            return 0
        self.bytes += taken
        return taken

    def give_back(self, taken: int) -> None:
        self.bytes -= taken
