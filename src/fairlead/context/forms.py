"""One request on its way through its texts: the forms that it may take, each with what is remembered if it is sent.

The first form has every new group of blocks in the order received, but for repetitions. The forms part at the first
group that could be aligned to what was sent before; the groups after it are aligned as well as can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.context.dedup import Seen
from fairlead.context.draft import Draft, Settings, arranged, draft
from fairlead.context.escaped import Escaped, Piece, applied
from fairlead.context.index import ContextIndex
from fairlead.context.order import Order, aligned
from fairlead.context.texts import Text
from fairlead.core.spans import Place, replace_at

MOST_FORMS: Final = 3

_TEXT_PLACE: Final = 1 << 32  # distance of two texts in the places of their parts
_KEPT_BYTES: Final = 400  # of a small `Kept` and its entry, about
_DETAIL_BYTES: Final = 100  # of each piece, body and part


class Kept(msgspec.Struct, frozen=True, gc=False):
    """What became of one text of a conversation."""

    pieces: tuple[Piece, ...] | None = None  # of its JSON string; None: it stayed as it was
    bodies: tuple[tuple[bytes, bytes], ...] = ()
    parts: tuple[tuple[bytes, int], ...] = ()

    def size_bytes(self) -> int:
        texts = sum(len(piece) for piece in self.pieces or () if isinstance(piece, bytes))
        return texts + _KEPT_BYTES + _DETAIL_BYTES * (len(self.pieces or ()) + len(self.bodies) + len(self.parts))


class Sent(msgspec.Struct, frozen=True, gc=False):
    """Blocks in the order in which a form sends them, after what `root` stands for."""

    root: int
    ids: tuple[int, ...]


class Change(msgspec.Struct, frozen=True):
    """What is done to one group of blocks, or to one text without any."""

    place: Place  # of the text in the body
    format: str  # of the group, or "text"
    blocks: int
    order: Order  # positions in which the blocks were received
    references: tuple[int, ...]  # positions of the blocks that were read before

    @property
    def is_reordered(self) -> bool:
        return self.order != tuple(range(len(self.order)))


class Form(msgspec.Struct, frozen=True):
    """One way to send a request. `body` is None where nothing of it changes."""

    body: bytes | None
    changes: tuple[Change, ...]  # of what is new in this request; what is remembered is not told again
    known_bytes: int  # of new blocks in the order in which they were sent before, from the first on
    dropped_bytes: int  # of what is new, replaced by references
    sent: tuple[Sent, ...]
    kept: tuple[tuple[int, Kept], ...]


class _Variant:
    """A form in the making."""

    __slots__ = ("changes", "dropped_bytes", "edits", "kept", "known_bytes", "read", "sent")

    def __init__(self, read: int) -> None:
        self.read = read  # hash of all that the model reads up to here
        self.edits: dict[Place, bytes] = {}
        self.changes: list[Change] = []
        self.sent: list[Sent] = []
        self.kept: list[tuple[int, Kept]] = []
        self.known_bytes = self.dropped_bytes = 0

    def copy(self) -> _Variant:
        other = _Variant(self.read)
        other.edits, other.changes = dict(self.edits), list(self.changes)
        other.sent, other.kept = list(self.sent), list(self.kept)
        other.known_bytes, other.dropped_bytes = self.known_bytes, self.dropped_bytes
        return other

    def take(self, text: Text, key: int, kept: Kept) -> None:
        """The next text, and what becomes of it."""
        written = text.raw
        if kept.pieces is not None and text.place is not None:
            written = self.edits[text.place] = applied(text.raw, kept.pieces)
        self.read = xxh3_64_intdigest(written, self.read)
        self.kept.append((key, kept))

    def form(self, body: bytes) -> Form | None:
        """None if the body cannot be changed where it must be."""
        changed = replace_at(body, self.edits) if self.edits else None
        if self.edits and changed is None:
            return None
        return Form(
            changed, tuple(self.changes), self.known_bytes, self.dropped_bytes, tuple(self.sent), tuple(self.kept)
        )


class Work:
    """One request on its way through its texts."""

    def __init__(self, index: ContextIndex, settings: Settings, tenant: bytes, session: bytes) -> None:
        self.best = 0
        self._index = index
        self._settings = settings
        self._seen = Seen()
        self._place = 0
        whose = xxh3_64_intdigest(tenant)
        does = b"%d%d" % (settings.order, settings.dedup) + " ".join(settings.formats).encode()
        self._received = xxh3_64_intdigest(does, xxh3_64_intdigest(session, whose))
        self._variants = [_Variant(whose)]

    def key(self, text: Text) -> int:
        """Of the conversation, as it was received, up to and with this text."""
        return xxh3_64_intdigest(text.raw, self._received)

    def pass_on(self, text: Text) -> None:
        """A text that stays as it is."""
        self._advance(text)
        for variant in self._variants:
            variant.read = xxh3_64_intdigest(text.raw, variant.read)

    def repeat(self, text: Text, kept: Kept) -> None:
        """A text that becomes what it became before."""
        key = self._advance(text)
        self._seen.bodies.update(kept.bodies)
        for digest, place in kept.parts:
            self._seen.parts.setdefault(digest, place)
        for variant in self._variants:
            variant.take(text, key, kept)

    def make(self, text: Text, too_late: Callable[[], bool]) -> bool:
        """A text that is new here. False, with nothing done, where the time is over before it is ready."""
        escaped = Escaped.read(text.raw)
        if escaped is None:
            self.pass_on(text)
            return True
        made = draft(escaped.text, text.role, self._settings, self._seen, self._place * _TEXT_PLACE)
        if not made.groups and not made.whole:  # nothing to remember: it is as soon read again
            self.pass_on(text)
            return True
        if too_late():
            return False
        key = self._advance(text)
        variants = []
        for variant in self._variants:
            variants += self._arrangements(variant, text, key, escaped, made)
        self._variants = variants
        return True

    def forms(self, body: bytes) -> tuple[Form, ...] | None:
        if not self._variants[0].kept:
            return None
        forms = [form for variant in self._variants if (form := variant.form(body)) is not None]
        return tuple(forms) if len(forms) == len(self._variants) else None

    def _advance(self, text: Text) -> int:
        self._received = self.key(text)
        self._place += 1
        return self._received

    def _arrangements(self, variant: _Variant, text: Text, key: int, escaped: Escaped, made: Draft) -> list[_Variant]:
        """The variant with this text in the order received; and aligned, where it is the first that can be."""
        forks = len(self._variants) == 1
        result: list[_Variant] = []
        choice = _Choice(self._index, made, self._settings.order, 0 if forks else None)
        while True:
            pieces = arranged(made, variant.read, choice)
            other = variant.copy()
            other.changes += _changes(text, made, choice.orders)
            other.sent += choice.sent
            other.known_bytes += choice.known_bytes
            other.dropped_bytes += made.dropped_bytes
            written = None if pieces is None else escaped.written(pieces)
            other.take(text, key, Kept(written, made.bodies, made.parts))
            result.append(other)
            if len(result) > choice.others or len(result) == MOST_FORMS:
                break
            if choice.aligned_is_best:
                self.best = 1
            choice = _Choice(self._index, made, self._settings.order, len(result))
        return result


class _Choice:
    """Chooses orders for the groups of a text, and notes them.

    The first group that could be aligned gets its `number`-th other order, 0 the received one; the groups after it, and
    all if `number` is None, get the order that shares most.
    """

    __slots__ = (
        "_index",
        "_made",
        "_number",
        "_reorders",
        "aligned_is_best",
        "known_bytes",
        "orders",
        "others",
        "sent",
    )

    def __init__(self, index: ContextIndex, made: Draft, reorders: bool, number: int | None) -> None:
        self.orders: dict[int, Order] = {}  # by group
        self.sent: list[Sent] = []
        self.known_bytes = 0
        self.others = 0  # orders that the group where the forms part could have, beside the received one
        self.aligned_is_best = False
        self._index = index
        self._made = made
        self._reorders = reorders
        self._number = number

    def __call__(self, group: int, root: int) -> Order:
        ids = self._made.ids[group]
        received = order = tuple(range(len(ids)))
        if not self._reorders:
            return received
        sizes = [block.end - block.start for block in self._made.groups[group].blocks]
        found = aligned(self._index, root, ids, sizes, self._made.references[group], MOST_FORMS)
        others = [one for one in found if one != received]
        if self._number is None or self.others:
            order = found[0] if found else received
        elif others:
            self.others = len(others)
            self.aligned_is_best = found[0] != received
            if self._number:
                order = others[self._number - 1]
        self.orders[group] = order
        sent = Sent(root, tuple([ids[place] for place in order]))
        known = self._index.known(root, sent.ids)
        self.known_bytes += sum(sizes[place] for place in order[:known])
        self.sent.append(sent)
        return order


def _changes(text: Text, made: Draft, orders: Mapping[int, Order]) -> Iterator[Change]:
    place = text.place or ()
    for number, group in enumerate(made.groups):
        order = orders.get(number, tuple(range(len(group.blocks))))
        change = Change(place, group.format, len(group.blocks), order, made.references[number])
        if change.is_reordered or change.references:
            yield change
    if not made.groups and made.dropped_bytes:
        yield Change(place, "text", 0, (), ())
