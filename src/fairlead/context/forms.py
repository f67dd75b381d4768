"""The forms in which a request may be sent, made text by text, each with what to remember if it is chosen.

The first form keeps every new group of blocks in the order received, with repetitions replaced. The forms differ from
the first group that can be aligned to what was sent before; groups after it are aligned as far as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.api.spans import JsonPath, replace_at
from fairlead.context.census import Census, Claim, Named, decoded
from fairlead.context.dedup import LEAST_BYTES, Seen
from fairlead.context.draft import Draft, Found, Settings, arranged, draft, found_in, is_plain
from fairlead.context.escaped import Escaped, Piece, applied
from fairlead.context.index import ContextIndex
from fairlead.context.order import Permutation, aligned
from fairlead.context.positions import MOST_BYTES as POSITION_BYTES
from fairlead.context.positions import speaks_of_positions
from fairlead.context.texts import Text

MOST_FORMS: Final = 3

_TEXT_PLACE: Final = 1 << 32  # offset between two texts in the positions of their parts
_MOST_ESCAPES: Final = 16_384  # in a text: each is one step when a byte's position is looked up
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


class _Variant:
    """A form under construction."""

    __slots__ = ("changes", "dropped_bytes", "edits", "kept", "known_bytes", "read", "sent")

    def __init__(self, read: int) -> None:
        self.read = read  # hash of all that the model reads up to here
        self.edits: dict[JsonPath, bytes] = {}
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


class Work:
    """The forms of one request, built text by text."""

    def __init__(self, index: ContextIndex, settings: Settings, tenant: bytes, session: bytes) -> None:
        self.best = 0
        self._index = index
        self._settings = settings
        self._seen = Seen()
        self._place = 0
        self._readings: Sequence[Reading] = ()
        whose = xxh3_64_intdigest(tenant)
        does = b"%d%d" % (settings.order, settings.dedup) + " ".join(settings.formats).encode()
        self._received = xxh3_64_intdigest(does, xxh3_64_intdigest(session, whose))
        self._variants = [_Variant(whose)]

    def key(self, text: Text) -> int:
        """The hash of the conversation as received, up to and including this text, the next one."""
        self._received = xxh3_64_intdigest(text.raw, self._received)
        return self._received

    def look_at(self, reading: Reading) -> None:
        """Find the blocks of a text that is not remembered, or was never looked at."""
        raw = reading.text.raw
        reading.escaped = Escaped.read(raw) if raw.count(b"\\") <= _MOST_ESCAPES else None
        if reading.escaped is not None:
            reading.found = found_in(reading.escaped.text, self._settings)

    def begin(self, readings: Sequence[Reading]) -> list[Reading]:
        """The request's texts, all of them. Returns those that cannot be sent as they were sent before: what is new
        in the request has made a reference in them ambiguous, or speaks of positions in an order that was changed.
        """
        self._readings = readings
        last = max((number for number, reading in enumerate(readings) if reading.kept is not None), default=-1)
        new = readings[last + 1 :]
        census = _census(new)
        stale = []
        for reading in readings[: last + 1]:
            kept = reading.kept
            if kept is not None and (
                not all(map(census.holds, kept.claims)) or (kept.reordered and _speak_of_positions(new))
            ):
                reading.kept = None
                stale.append(reading)
        return stale

    @cached_property
    def _census(self) -> Census:
        return _census(self._readings)

    @cached_property
    def _orders_stay(self) -> bool:
        return _speak_of_positions(self._readings)

    def pass_on(self, reading: Reading) -> None:
        """A text that stays as it is."""
        text = reading.text
        self._place += 1
        self._seen.read(lambda: decoded(text.raw), len(text.raw))
        for variant in self._variants:
            variant.read = xxh3_64_intdigest(text.raw, variant.read)

    def repeat(self, reading: Reading, kept: Kept) -> None:
        """A text sent as it was sent before."""
        raw = reading.text.raw
        self._place += 1
        self._seen.bodies.update(kept.bodies)
        self._seen.read(lambda: _unreplaced(raw, kept.pieces), len(raw))
        for digest, place in kept.parts:
            self._seen.parts.setdefault(digest, place)
        for variant in self._variants:
            variant.take(reading.text, reading.key, kept)

    def catch_up(self, reading: Reading, too_late: Callable[[], bool]) -> Kept | None:
        """What there is in a text that was sent unchanged because time had run out: it stays, later ones may refer to
        it. None if time runs out again.
        """
        found = reading.found
        if found is None or not self._settings.dedup:
            return Kept()
        # Everything is new to it: this finds its parts, and changes nothing.
        made = draft(found, reading.text.role, self._settings, Seen(), Census(), self._place * _TEXT_PLACE, too_late)
        if made is None:
            return None
        return msgspec.structs.replace(_kept(made, None, {}, _speak_of_positions([reading])), claims=())

    def make(self, reading: Reading, too_late: Callable[[], bool]) -> bool:
        """A new text. False, with nothing done, if time ran out."""
        found, escaped = reading.found, reading.escaped
        if found is None or escaped is None or not (found.groups or is_plain(found, reading.text.role)):
            self.pass_on(reading)  # nothing to remember: reading it again is as fast
            return True
        made = draft(
            found,
            reading.text.role,
            self._settings,
            self._seen,
            self._census,
            self._place * _TEXT_PLACE,
            too_late,
        )
        if made is None or too_late():
            return False
        self._place += 1
        variants = []
        for variant in self._variants:
            variants += self._arrangements(variant, reading, escaped, made)
        self._variants = variants
        kept = variants[0].kept[-1][1]
        self._seen.read(lambda: _unreplaced(reading.text.raw, kept.pieces), len(reading.text.raw))
        return True

    def forms(self, body: bytes) -> tuple[Form, ...] | None:
        if not self._variants[0].kept:
            return None
        forms = [form for variant in self._variants if (form := variant.form(body)) is not None]
        return tuple(forms) if len(forms) == len(self._variants) else None

    def _arrangements(self, variant: _Variant, reading: Reading, escaped: Escaped, made: Draft) -> list[_Variant]:
        """The variant with this text in the order received; and aligned, where it is the first that can be."""
        forks = len(self._variants) == 1
        speaks = self._settings.order and _speak_of_positions([reading])
        result: list[_Variant] = []
        names = _Names(made, lambda: self._census)
        choice = _Choice(self, names, 0 if forks else None)
        while True:
            pieces = arranged(made, variant.read, choice, names)
            other = variant.copy()
            other.changes += _changes(reading.text, made, choice.orders)
            other.sent += choice.sent
            other.known_bytes += choice.known_bytes
            other.dropped_bytes += made.dropped_bytes
            written = None if pieces is None else escaped.written(pieces)
            other.take(reading.text, reading.key, _kept(made, written, choice.orders, speaks))
            result.append(other)
            if len(result) > choice.others or len(result) == MOST_FORMS:
                break
            if choice.aligned_is_best:
                self.best = 1
            choice = _Choice(self, names, len(result))
        return result

    def aligned(self, group: int, root: int, names: _Names) -> list[Permutation]:
        """Orders of a group's blocks that were sent before, and may be sent: all blocks can be named, and nothing in
        the request means them by their positions.
        """
        made = names.made
        ids = made.ids[group]
        sizes = [block.end - block.start for block in made.groups[group].blocks]
        orders = aligned(self._index, root, ids, sizes, made.references[group], MOST_FORMS)
        received = tuple(range(len(ids)))
        moves = any(order != received for order in orders)
        return orders if not moves or (names.known(group) and not self._orders_stay) else []

    @property
    def index(self) -> ContextIndex:
        return self._index

    @property
    def reorders(self) -> bool:
        return self._settings.order


class _Names:
    """How notes on the order name a text's documents; looked up when an order is changed."""

    __slots__ = ("_census", "_names", "made")

    def __init__(self, made: Draft, census: Callable[[], Census]) -> None:
        self.made = made
        self._census = census
        self._names: dict[int, Sequence[bytes] | None] = {}

    def known(self, group: int) -> bool:
        if group not in self._names:
            self._names[group] = self.made.names(group, self._census())
        return self._names[group] is not None

    def __call__(self, group: int) -> Sequence[bytes]:
        return (self._names[group] if self.known(group) else ()) or ()


class _Choice:
    """Chooses and records the order of each group of a text.

    The first group that can be aligned gets its `number`-th alternative order (0: as received); groups after it, and
    all if `number` is None, get the order that shares most.
    """

    __slots__ = (
        "_names",
        "_number",
        "_work",
        "aligned_is_best",
        "known_bytes",
        "orders",
        "others",
        "sent",
    )

    def __init__(self, work: Work, names: _Names, number: int | None) -> None:
        self.orders: dict[int, Permutation] = {}  # by group
        self.sent: list[Sent] = []
        self.known_bytes = 0
        self.others = 0  # alternative orders of the group at which the forms differ
        self.aligned_is_best = False
        self._work = work
        self._names = names
        self._number = number

    def __call__(self, group: int, root: int) -> Permutation:
        made = self._names.made
        ids = made.ids[group]
        received = order = tuple(range(len(ids)))
        if not self._work.reorders:
            return received
        found = self._work.aligned(group, root, self._names)
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
        blocks = made.groups[group].blocks
        known = self._work.index.known(root, sent.ids)
        self.known_bytes += sum(blocks[place].end - blocks[place].start for place in order[:known])
        self.sent.append(sent)
        return order


def _changes(text: Text, made: Draft, orders: Mapping[int, Permutation]) -> Iterator[Change]:
    place = text.place or ()
    for number, group in enumerate(made.groups):
        order = orders.get(number, tuple(range(len(group.blocks))))
        change = Change(place, group.format, len(group.blocks), order, made.references[number])
        if change.is_reordered or change.references:
            yield change
    if not made.groups and made.dropped_bytes:
        yield Change(place, "text", 0, (), ())


def _kept(
    made: Draft, written: tuple[Piece, ...] | None, orders: Mapping[int, Permutation], speaks_of_positions: bool
) -> Kept:
    blocks = [block for group in made.groups for block in group.blocks]
    referable = dict.fromkeys(
        named.digest
        for named, block in zip(made.named, blocks, strict=True)
        if block.body_end - block.body_start >= LEAST_BYTES
    )
    return Kept(
        pieces=written,
        named=made.named,
        bodies=tuple(referable),
        parts=made.parts,
        claims=made.claims,
        reordered=any(order != tuple(range(len(order))) for order in orders.values()),
        speaks_of_positions=speaks_of_positions,
    )


def _census(readings: Sequence[Reading]) -> Census:
    census = Census()
    for reading in readings:
        census.add(reading.text.raw, reading.named)
    return census


def _speak_of_positions(readings: Sequence[Reading]) -> bool:
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


def _unreplaced(raw: bytes, pieces: Sequence[Piece] | None) -> bytes:
    """The text of a JSON string as it is sent, without what was put into it."""
    if pieces is None:
        return decoded(raw)
    return decoded(b"\\n".join([raw[piece[0] : piece[1]] for piece in pieces if not isinstance(piece, bytes)]))
