"""How many bytes of request bodies are held at this moment, over all streams, and the most that may be.

A body is held while its parts come in and while it waits to be read. Each is bounded by the gateway's limit for one
body; a thousand clients that send slowly would still hold a thousand times that. So a body that has been coming in for
some seconds gives way, the oldest first, once another finds no room: a dozen that never end would else keep all others
out. What counts is when a body began, not when its last byte came: one byte now and then costs a client nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

DEFAULT_MOST_BYTES: Final = 256 << 20
UPLOAD_S: Final = 5.0  # that a body may take to come in, whoever else wants its room
_PIECE_BYTES: Final = 100  # the overhead of a piece: a client may send one byte at a time
_DISPLACED_AT_ONCE: Final = 64


class Upload(Protocol):
    """A request whose body comes in by parts, and that can be answered before it is whole."""

    def give_way(self) -> None:
        """Answer it, and give back what it holds."""


class HeldBytes:
    """Written by streams on one event loop."""

    __slots__ = ("_uploads", "bytes", "displaced", "most_bytes", "refused")

    def __init__(self, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self.refused = 0  # bodies, for lack of room
        self.displaced = 0  # bodies that had been coming in for long, by others that had no room
        self._uploads: dict[Upload, float] = {}  # and when each began, the oldest first

    def take(self, part_bytes: int, pieces: int, upload: Upload, clock_s: Callable[[], float]) -> int:
        """Reserve room for a part of `upload`; the bytes to give back later, 0 if there is no room."""
        taken = part_bytes + _PIECE_BYTES * pieces
        if self.bytes + taken > self.most_bytes and not self._made_room(taken, upload, clock_s()):
            self.refused += 1
            return 0
        self.bytes += taken
        return taken

    def give_back(self, taken: int) -> None:
        self.bytes -= taken

    def comes_in(self, upload: Upload, clock_s: Callable[[], float]) -> None:
        """More of its body is to come. Until `is_here` it may have to give way."""
        if upload not in self._uploads:
            self._uploads[upload] = clock_s()

    def is_here(self, upload: Upload) -> None:
        self._uploads.pop(upload, None)

    def _made_room(self, wanted: int, newcomer: Upload, now_s: float) -> bool:
        for _ in range(_DISPLACED_AT_ONCE):
            oldest, began_s = next(iter(self._uploads.items()), (newcomer, now_s))
            if oldest is newcomer or now_s - began_s < UPLOAD_S:
                return False
            self.is_here(oldest)
            oldest.give_way()
            self.displaced += 1
            if self.bytes + wanted <= self.most_bytes:
                return True
        return False
