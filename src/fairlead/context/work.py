"""Makes the forms of a request, text by text.

The first form keeps every new group of blocks in the order received, with repetitions replaced. The forms differ from
the first group that can be aligned to what was sent before; groups after it are aligned as far as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.context.census import Census, decoded
from fairlead.context.choice import Choice, DocumentNames, Orders
from fairlead.context.dedup import LEAST_BYTES, Seen
from fairlead.context.draft import Draft, Settings, arranged, draft, found_in, is_plain
from fairlead.context.escaped import Escaped, Piece
from fairlead.context.forms import MOST_FORMS, Change, Form, Variant
from fairlead.context.index import ContextIndex
from fairlead.context.order import Permutation
from fairlead.context.readings import Kept, Reading, census_of, speak_of_positions, unreplaced
from fairlead.context.texts import Text

_TEXT_PLACE: Final = 1 << 32  # offset between two texts in the positions of their parts
_MOST_ESCAPES: Final = 16_384  # in a text: each is one step when a byte's position is looked up


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
        self._variants = [Variant(whose)]

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
        census = census_of(new)
        stale = []
        for reading in readings[: last + 1]:
            kept = reading.kept
            if kept is not None and (
                not all(map(census.holds, kept.claims)) or (kept.reordered and speak_of_positions(new))
            ):
                reading.kept = None
                stale.append(reading)
        return stale

    @cached_property
    def _census(self) -> Census:
        return census_of(self._readings)

    @cached_property
    def _orders_stay(self) -> bool:
        return speak_of_positions(self._readings)

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
        self._seen.read(lambda: unreplaced(raw, kept.pieces), len(raw))
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
        return msgspec.structs.replace(_kept(made, None, {}, speak_of_positions([reading])), claims=())

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
        self._seen.read(lambda: unreplaced(reading.text.raw, kept.pieces), len(reading.text.raw))
        return True

    def forms(self, body: bytes) -> tuple[Form, ...] | None:
        if not self._variants[0].kept:
            return None
        forms = [form for variant in self._variants if (form := variant.form(body)) is not None]
        return tuple(forms) if len(forms) == len(self._variants) else None

    def _arrangements(self, variant: Variant, reading: Reading, escaped: Escaped, made: Draft) -> list[Variant]:
        """The variant with this text in the order received; and aligned, where it is the first that can be."""
        forks = len(self._variants) == 1
        speaks = self._settings.order and speak_of_positions([reading])
        result: list[Variant] = []
        names = DocumentNames(made, lambda: self._census)
        orders = Orders(self._index, names, lambda: self._orders_stay, reorders=self._settings.order)
        choice = Choice(orders, 0 if forks else None)
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
            choice = Choice(orders, len(result))
        return result


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
