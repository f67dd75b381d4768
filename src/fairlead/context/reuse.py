"""Context reuse on request bodies: what may be sent in place of a request, and the memory that keeps a conversation's
prefix the same from turn to turn.

`plan` gives the forms that a request may take: as received but for repetitions, and aligned to what was sent before.
Whoever knows what each endpoint holds chooses one (`core.router`); without endpoints `Plan.best` is the one. `commit`
then remembers it: a text that comes again in the same conversation becomes what it became the first time.

Two tenants share nothing. Two sessions of a tenant share the index of orders, and no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.context.dedup import Seen
from fairlead.context.draft import Draft, Settings, arranged, draft
from fairlead.context.escaped import Escaped, Piece
from fairlead.context.index import ContextIndex
from fairlead.context.order import Order, aligned
from fairlead.context.texts import Text, read_texts
from fairlead.core.spans import Place, replace_at

LIMIT_S: Final = 0.005
DEFAULT_MEMORY_BYTES: Final = 64 * 1024 * 1024
MOST_FORMS: Final = 3

_LEAST_TEXT_BYTES: Final = 64  # a shorter text has no blocks worth looking for
_MOST_TEXT_BYTES: Final = 1024 * 1024  # a longer one would take too long, at every turn
_TEXT_PLACE: Final = 1 << 32  # distance of two texts in the places of their parts
_KEPT_BYTES: Final = 400  # of a small `_Kept` and its entry, about
_DETAIL_BYTES: Final = 100  # of each piece, body and part


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """What became of one text of a conversation."""

    pieces: tuple[Piece, ...] | None = None  # None: it stayed as it was
    bodies: tuple[tuple[bytes, bytes], ...] = ()
    parts: tuple[tuple[bytes, int], ...] = ()

    def size_bytes(self) -> int:
        texts = sum(len(piece) for piece in self.pieces or () if isinstance(piece, bytes))
        return texts + _KEPT_BYTES + _DETAIL_BYTES * (len(self.pieces or ()) + len(self.bodies) + len(self.parts))


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """Blocks in the order in which a form sends them, after what `root` stands for."""

    root: int
    ids: tuple[int, ...]


class Form(msgspec.Struct, frozen=True):
    """One way to send a request. `body` is None where nothing of it changes."""

    body: bytes | None
    orders: tuple[Order, ...]  # of the groups that are reordered: positions in which they were received
    sent: tuple[_Sent, ...]
    kept: tuple[tuple[int, _Kept], ...]


class Plan(msgspec.Struct, frozen=True):
    """The forms that a request may take; the first has every new group in the order received."""

    forms: tuple[Form, ...]
    best: int  # the form that repeats most of what was sent before


class Counts:
    """Since the start."""

    __slots__ = ("last_failure", "late", "planned")

    def __init__(self) -> None:
        self.planned = 0
        self.late = 0  # requests of which texts went on unread, as the time was over
        self.last_failure = ""


class ContextReuse:
    """One sidecar's (or one program's) context reuse. Not for several threads at once."""

    def __init__(
        self,
        *,
        clock_s: Callable[[], float],
        index: ContextIndex | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.index = index if index is not None else ContextIndex()
        self.counts = Counts()
        self.used_bytes = 0
        self._clock_s = clock_s
        self._limit_s = limit_s
        self._memory_bytes = memory_bytes
        self._memory: OrderedDict[int, _Kept] = OrderedDict()  # by the hash of a conversation up to and with a text

    def plan(self, body: bytes, settings: Settings, *, tenant: bytes = b"", session: bytes = b"") -> Plan | None:
        """How `body` may be sent; None if it has no text that could be changed, or is no JSON that an engine takes.

        After `limit_s` texts that are not remembered go on as they are, now and whenever they come again.
        """
        try:
            texts = read_texts(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        deadline_s = self._clock_s() + self._limit_s
        work = _Work(self.index, settings, tenant, session)
        late = False
        for text in texts:
            if text.place is None or not _LEAST_TEXT_BYTES < len(text.raw) < _MOST_TEXT_BYTES:
                work.pass_on(text)
                continue
            kept = self._remembered(work.key(text))
            if kept is not None:
                work.repeat(text, kept)
                continue
            late = late or self._clock_s() > deadline_s
            if late or not work.make(text, lambda: self._clock_s() > deadline_s):
                late = True
                work.repeat(text, _Kept())
        self.counts.late += late
        forms = work.forms(body)
        if forms is None:
            return None
        self.counts.planned += 1
        return Plan(forms, min(work.best, len(forms) - 1))

    def commit(self, plan: Plan, form: int) -> None:
        """The request was sent in this form: remember it, and let later ones align to its orders."""
        for key, kept in plan.forms[form].kept:
            self._remember(key, kept)
        for sent in plan.forms[form].sent:
            self.index.insert(sent.root, sent.ids)

    def drop(self, plan: Plan, form: int) -> None:
        """No endpoint holds any more what this form was aligned to."""
        for sent in plan.forms[form].sent:
            known = self.index.known(sent.root, sent.ids)
            self.index.drop(sent.root, sent.ids[:known])

    def rewrite(self, body: bytes, settings: Settings, *, tenant: bytes = b"", session: bytes = b"") -> bytes:
        """The body to send where one engine serves all: `plan` and `commit` of its best form."""
        plan = self.plan(body, settings, tenant=tenant, session=session)
        if plan is None:
            return body
        self.commit(plan, plan.best)
        changed = plan.forms[plan.best].body
        return body if changed is None else changed

    def _remembered(self, key: int) -> _Kept | None:
        kept = self._memory.get(key)
        if kept is not None:
            self._memory.move_to_end(key)
        return kept

    def _remember(self, key: int, kept: _Kept) -> None:
        if key in self._memory:
            return
        self._memory[key] = kept
        self.used_bytes += kept.size_bytes()
        while self.used_bytes > self._memory_bytes:
            self.used_bytes -= self._memory.popitem(last=False)[1].size_bytes()


class _Variant:
    """A form in the making."""

    __slots__ = ("edits", "kept", "orders", "read", "sent")

    def __init__(self, read: int) -> None:
        self.read = read  # hash of all that the model reads up to here
        self.edits: dict[Place, bytes] = {}
        self.orders: list[Order] = []
        self.sent: list[_Sent] = []
        self.kept: list[tuple[int, _Kept]] = []

    def copy(self) -> _Variant:
        other = _Variant(self.read)
        other.edits, other.orders = dict(self.edits), list(self.orders)
        other.sent, other.kept = list(self.sent), list(self.kept)
        return other


class _Work:
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

    def repeat(self, text: Text, kept: _Kept) -> None:
        """A text that becomes what it became before."""
        key = self._advance(text)
        self._seen.bodies.update(kept.bodies)
        for digest, place in kept.parts:
            self._seen.parts.setdefault(digest, place)
        written = None if kept.pieces is None else Escaped(text.raw).written(kept.pieces)
        for variant in self._variants:
            self._take(variant, text, key, kept, written)

    def make(self, text: Text, too_late: Callable[[], bool]) -> bool:
        """A text that is new here. False, with nothing done, where the time is over before it is ready."""
        escaped = Escaped.read(text.raw)
        if escaped is None:
            self.pass_on(text)
            return True
        made = draft(escaped.text, text.role, self._settings, self._seen, self._place * _TEXT_PLACE)
        if too_late():
            return False
        key = self._advance(text)
        variants = []
        for variant in self._variants:
            variants += self._arrangements(variant, text, key, escaped, made)
        self._variants = variants
        return True

    def forms(self, body: bytes) -> tuple[Form, ...] | None:
        forms = []
        for variant in self._variants:
            changed = replace_at(body, variant.edits) if variant.edits else None
            if variant.edits and changed is None:
                return None
            forms.append(Form(changed, tuple(variant.orders), tuple(variant.sent), tuple(variant.kept)))
        return tuple(forms) if forms[0].kept else None

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
            other.orders += choice.orders
            other.sent += choice.sent
            kept = _Kept(pieces, made.bodies, made.parts)
            self._take(other, text, key, kept, None if pieces is None else escaped.written(pieces))
            result.append(other)
            if len(result) > choice.others or len(result) == MOST_FORMS:
                break
            if choice.aligned_is_best:
                self.best = 1
            choice = _Choice(self._index, made, self._settings.order, len(result))
        return result

    def _take(self, variant: _Variant, text: Text, key: int, kept: _Kept, written: bytes | None) -> None:
        variant.read = xxh3_64_intdigest(text.raw if written is None else written, variant.read)
        variant.kept.append((key, kept))
        if written is not None and text.place is not None:
            variant.edits[text.place] = written


class _Choice:
    """Chooses orders for the groups of a text, and notes them.

    The first group that could be aligned gets its `number`-th other order, 0 the received one; the groups after it, and
    all if `number` is None, get the order that shares most.
    """

    __slots__ = ("_index", "_made", "_number", "_reorders", "aligned_is_best", "orders", "others", "sent")

    def __init__(self, index: ContextIndex, made: Draft, reorders: bool, number: int | None) -> None:
        self.orders: list[Order] = []
        self.sent: list[_Sent] = []
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
        if order != received:
            self.orders.append(order)
        self.sent.append(_Sent(root, tuple([ids[place] for place in order])))
        return order
