"""The forms in which a request may be sent, each with what to remember if it is chosen."""

from __future__ import annotations

from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.api.spans import JsonPath, replace_at
from fairlead.context.escaped import applied
from fairlead.context.order import Permutation
from fairlead.context.readings import Kept
from fairlead.context.texts import Text

MOST_FORMS: Final = 3


class Sent(msgspec.Struct, frozen=True, gc=False):
    """Blocks in the order in which a form sends them, after the text whose hash is `root`."""

    root: int
    ids: tuple[int, ...]


class Change(msgspec.Struct, frozen=True):
    """What is done to one group of blocks, or to one text without any."""

    place: JsonPath  # where the text is in the body
    format: str  # the group's format, or "text"
    blocks: int
    order: Permutation  # for each block sent, its position as received
    references: tuple[int, ...]  # positions of the blocks replaced by references

    @property
    def is_reordered(self) -> bool:
        return self.order != tuple(range(len(self.order)))


class Form(msgspec.Struct, frozen=True):
    """One way to send a request. `body` is None if nothing changes."""

    body: bytes | None
    changes: tuple[Change, ...]  # to what is new in this request; earlier changes are not listed again
    known_bytes: int  # of new blocks that begin in an order sent before
    dropped_bytes: int  # of new text, saved by references
    sent: tuple[Sent, ...]
    kept: tuple[tuple[int, Kept], ...]


class Variant:
    """A form under construction."""

    __slots__ = ("changes", "dropped_bytes", "edits", "kept", "known_bytes", "read", "sent")

    def __init__(self, read: int) -> None:
        self.read = read  # hash of all that the model reads up to here
        self.edits: dict[JsonPath, bytes] = {}
        self.changes: list[Change] = []
        self.sent: list[Sent] = []
        self.kept: list[tuple[int, Kept]] = []
        self.known_bytes = self.dropped_bytes = 0

    def copy(self) -> Variant:
        other = Variant(self.read)
        other.edits, other.changes = dict(self.edits), list(self.changes)
        other.sent, other.kept = list(self.sent), list(self.kept)
        other.known_bytes, other.dropped_bytes = self.known_bytes, self.dropped_bytes
        return other

    def take(self, text: Text, key: int, kept: Kept) -> None:
        """Add the next text and how it is sent."""
        written = text.raw
        if kept.pieces is not None and text.place is not None:
            written = self.edits[text.place] = applied(text.raw, kept.pieces)
        self.read = xxh3_64_intdigest(written, self.read)
        self.kept.append((key, kept))

    def form(self, body: bytes) -> Form | None:
        """The finished form; None if the body cannot be edited where needed."""
        changed = replace_at(body, self.edits) if self.edits else None
        if self.edits and changed is None:
            return None
        return Form(
            changed, tuple(self.changes), self.known_bytes, self.dropped_bytes, tuple(self.sent), tuple(self.kept)
        )
