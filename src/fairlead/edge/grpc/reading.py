"""A call's messages out of its DATA: a prefix of five bytes, then so many bytes. Both may come in pieces.

A message is given in the parts that it came in, so that whoever reads a long one copies it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from fairlead.edge.grpc.held import UnfinishedBytes
from fairlead.edge.grpc.status import Status, StatusError

PREFIX: Final = Struct(">BL")  # compressed or not, and the length
PREFIX_BYTES: Final = PREFIX.size

Part = bytes | memoryview
Parts = Sequence[Part]  # of a message, in order; at least one


class MessageReader:
    """Holds what has come of one message, and counts it in `held`."""

    __slots__ = ("_held", "_missing", "_most_bytes", "_parts", "_parts_bytes", "_prefix", "stalled_since_s")

    def __init__(self, most_bytes: int, held: UnfinishedBytes) -> None:
        self._most_bytes = most_bytes
        self._held = held
        self._prefix = b""  # in pieces
        self._parts: list[Part] = []
        self._parts_bytes = 0
        self._missing = 0  # bytes of the message whose parts are held
        self.stalled_since_s: float | None = None  # when it was first seen unfinished

    @property
    def missing_bytes(self) -> int:
        """What the message under way still lacks, as far as that is known; 0: none is under way."""
        return self._missing or (PREFIX_BYTES - len(self._prefix) if self._prefix else 0)

    def feed(self, data: bytes) -> Iterator[Parts]:
        """The messages that `data` completes. Raises StatusError for one that is refused."""
        if self._missing:
            if len(data) < self._missing:
                self._hold(data, self._missing - len(data))
                return
            parts = self._parts
            parts.append(data[: self._missing])
            data = data[self._missing :]
            self.drop()
            yield parts
        elif self._prefix:
            data, self._prefix = self._prefix + data, b""
        at, end = 0, len(data)
        while end - at >= PREFIX_BYTES:
            start = at + PREFIX_BYTES
            stop = start + announced_bytes(data, at, self._most_bytes)
            if stop > end:
                # A view keeps all of `data`: only where that is hardly more.
                self._hold(memoryview(data)[start:] if start == PREFIX_BYTES else data[start:], stop - end)
                return
            yield (data[start:stop],)
            at = stop
        self._prefix = data[at:]

    def drop(self) -> None:
        """Forget what is held."""
        self._held.give(self._parts_bytes)
        self._parts, self._parts_bytes, self._missing, self._prefix = [], 0, 0, b""
        self.stalled_since_s = None

    def _hold(self, part: Part, missing: int) -> None:
        if not self._held.take(len(part)):
            raise StatusError(Status.RESOURCE_EXHAUSTED, "too many bytes of unfinished messages are held; try again")
        self._parts.append(part)
        self._parts_bytes += len(part)
        self._missing = missing


def announced_bytes(data: bytes, at: int, most_bytes: int) -> int:
    """The length that the prefix at `at` announces. Raises StatusError for a message that is refused."""
    is_compressed, length = PREFIX.unpack_from(data, at)
    if is_compressed:
        raise StatusError(Status.UNIMPLEMENTED, "messages must not be compressed")
    if length > most_bytes:
        raise StatusError(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes; at most {most_bytes} are taken")
    assert isinstance(length, int)
    return length
