"""A long request body in the pieces that it came in. It is never put together: to write 32 MB into fresh memory keeps
the event loop for 10 to 100 ms, most of which the kernel takes to find the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fairlead.api.spans import spliced
from fairlead.edge.grpc.reading import Part


class LongBody(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Its `len` is that of all its pieces."""

    pieces: tuple[Part, ...]
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes


Body = bytes | LongBody


def body_of(pieces: Iterable[Part], most_bytes: int) -> Body:
    """In one piece where it has at most `most_bytes`."""
    kept = tuple(pieces)
    size_bytes = sum(map(len, kept))
    return b"".join(kept) if size_bytes <= most_bytes else LongBody(kept, size_bytes)


def pieces_of(body: Body) -> tuple[Part, ...]:
    return body.pieces if isinstance(body, LongBody) else (body,)


def whole(body: Body) -> bytes:
    """In one piece, whatever that takes."""
    return b"".join(body.pieces) if isinstance(body, LongBody) else body


def ending(body: Body, size_bytes: int) -> bytes:
    """Its last bytes, so many or all."""
    if isinstance(body, bytes):
        return body[-size_bytes:]
    kept: list[Part] = []
    for piece in reversed(body.pieces):
        kept.append(memoryview(piece)[-size_bytes:])
        size_bytes -= len(kept[-1])
        if size_bytes <= 0:
            break
    return b"".join(reversed(kept))


def spliced_body(body: Body, changes: Iterable[tuple[int, int, bytes]]) -> Body:
    """As `api.spans.spliced`. What does not change of a long body is not copied."""
    if isinstance(body, bytes):
        return spliced(body, changes)
    made: list[Part] = []
    cursor = 0
    for start, end, new in sorted(changes):
        made += _between(body, cursor, start)
        made.append(new)
        cursor = end
    made += _between(body, cursor, body.size_bytes)
    return LongBody(tuple(made), sum(map(len, made)))


def _between(body: LongBody, start: int, end: int) -> Iterator[Part]:
    at = 0
    for piece in body.pieces:
        first, last = max(start - at, 0), min(end - at, len(piece))
        if first < last:
            yield piece if last - first == len(piece) else memoryview(piece)[first:last]
        at += len(piece)
