"""The texts of a request as they are read, and how each was sent before in its conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.context.census import Census, Claim, Named, decoded
from fairlead.context.draft import Found
from fairlead.context.escaped import Escaped, Piece
from fairlead.context.positions import MOST_BYTES as POSITION_BYTES
from fairlead.context.positions import speaks_of_positions
from fairlead.context.texts import Text

_KEPT_BYTES: Final = 400  # memory of a small `Kept` and its table entry, about
_ASKING: Final = ("system", "user")  # roles whose texts may ask about documents
_DETAIL_BYTES: Final = 100  # memory of each piece, body and part, about


class Kept(msgspec.Struct, frozen=True, gc=False):
    """How one text of a conversation was sent."""

    pieces: tuple[Piece, ...] | None = None  # pieces of its JSON string; None: it was sent unchanged
    named: tuple[Named, ...] = ()  # its documents
    bodies: tuple[bytes, ...] = ()  # digests of those of its documents to which later texts may refer
    parts: tuple[tuple[bytes, int], ...] = ()
    claims: tuple[Claim, ...] = ()  # what its references rest on
    reordered: bool = False
    speaks_of_positions: bool = False
    unread: bool = False  # time ran out: what it contains is not known yet

    def size_bytes(self) -> int:
        texts = sum(len(piece) for piece in self.pieces or () if isinstance(piece, bytes))
        details = (self.pieces or (), self.named, self.bodies, self.parts, self.claims)
        return texts + _KEPT_BYTES + _DETAIL_BYTES * sum(map(len, details))


class Reading(msgspec.Struct, gc=False):
    """A text of the request, and what is known of it before forms are made."""

    text: Text
    key: int  # the hash of the conversation as received, up to and including this text
    kept: Kept | None = None  # how it was sent before
    escaped: Escaped | None = None  # None: it is sent as it is
    found: Found | None = None  # None: not looked at, or remembered

    @property
    def named(self) -> Sequence[Named]:
        return self.found.named if self.found is not None else self.kept.named if self.kept is not None else ()


def census_of(readings: Sequence[Reading]) -> Census:
    census = Census()
    for reading in readings:
        census.add(reading.text.raw, reading.named)
    return census


def speak_of_positions(readings: Sequence[Reading]) -> bool:
    """Whether what users or the system say in these texts may mean documents by their positions."""
    left = POSITION_BYTES
    for reading in readings:
        if reading.text.role not in _ASKING:
            continue
        if reading.found is None and reading.kept is not None and not reading.kept.unread:
            if reading.kept.speaks_of_positions:
                return True
            continue
        said = reading.found.outside() if reading.found is not None else decoded(reading.text.raw)
        left -= len(said)
        if left < 0 or speaks_of_positions(said):
            return True
    return False


def unreplaced(raw: bytes, pieces: Sequence[Piece] | None) -> bytes:
    """The text of a JSON string as it is sent, without what was put into it."""
    if pieces is None:
        return decoded(raw)
    return decoded(b"\\n".join([raw[piece[0] : piece[1]] for piece in pieces if not isinstance(piece, bytes)]))
