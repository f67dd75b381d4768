"""Context reuse on request bodies: the forms to send, and the memory that keeps a conversation's prefix stable.

`plan` gives the forms that a request may take: as received with repetitions replaced, and aligned to what was sent
before. The router, which knows what each endpoint holds, chooses one; without endpoints it is `Plan.best`. `commit`
then remembers it, so that a text that comes again in the same conversation is sent as it was the first time.

Two tenants share nothing. Two sessions of a tenant share the index of orders, and no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from fairlead.context.draft import Settings
from fairlead.context.forms import Form
from fairlead.context.index import ContextIndex
from fairlead.context.readings import Kept, Reading
from fairlead.context.texts import Text, read_texts
from fairlead.context.work import Work

LIMIT_S: Final = 0.005
DEFAULT_MEMORY_BYTES: Final = 64 * 1024 * 1024

_SHARDS: Final = 16  # growing a table copies it: many small ones, so that no request waits for a large one
_LEAST_TEXT_BYTES: Final = 64  # shorter texts are not searched for blocks
_MOST_TEXT_BYTES: Final = 256 * 1024  # takes some 3 ms; longer texts are not read


class Plan(msgspec.Struct, frozen=True):
    """The forms that a request may take; the first has every new group in the order received."""

    forms: tuple[Form, ...]
    best: int  # the form that repeats most of what was sent before


class Counts:
    """Counts since the start; the request path adds the changed requests and the tokens."""

    __slots__ = (
        "changed",
        "dropped_tokens",
        "failures",
        "last_failure",
        "late",
        "planned",
        "reordered_tokens",
    )

    def __init__(self) -> None:
        self.planned = 0
        self.changed = 0
        self.late = 0  # requests with texts left unread because time ran out
        self.failures = 0
        self.last_failure = ""
        self.reordered_tokens = 0  # found in a cache because of the changed order
        self.dropped_tokens = 0


class ContextReuse:
    """One sidecar's (or one program's) context reuse. Not for several threads at once."""

    def __init__(
        self,
        *,
        clock_s: Callable[[], float],  # CPU time if requests share the process: others' work must not count
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.index = ContextIndex()
        self.counts = Counts()
        self._clock_s = clock_s
        self._limit_s = limit_s
        self._shard_bytes = memory_bytes // _SHARDS
        # Keys: the hash of a conversation up to and including a text.
        self._memory: tuple[OrderedDict[int, Kept], ...] = tuple(OrderedDict() for _ in range(_SHARDS))
        self._used_bytes = [0] * _SHARDS

    @property
    def used_bytes(self) -> int:
        """Approximate memory of the remembered conversations."""
        return sum(self._used_bytes)

    def plan(self, body: bytes, settings: Settings, *, tenant: bytes = b"", session: bytes = b"") -> Plan | None:
        """How `body` may be sent; None if it has no text that could be changed, or is not JSON that an engine accepts.

        After `limit_s`, texts that are not remembered are sent unchanged, now and at every later turn; what they
        contain is caught up with at later turns, so that texts after them can refer to it.
        """
        deadline_s = self._clock_s() + self._limit_s
        try:
            texts = read_texts(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if texts is None:
            self.counts.late += 1
            return None

        def too_late() -> bool:
            return self._clock_s() > deadline_s

        work = Work(self.index, settings, tenant, session)
        readings: list[Reading] = []
        for text in texts:
            key = work.key(text)
            readings.append(Reading(text, key, self._remembered(key) if _is_searched(text) else None))
        unread = [one for one in readings if _is_searched(one.text) and (one.kept is None or one.kept.unread)]
        unlooked = _look_at(work, unread, too_late)
        unlooked |= _look_at(work, work.begin(readings), too_late)
        late = False
        for reading in readings:
            kept = reading.kept
            if not _is_searched(reading.text):
                work.pass_on(reading)
            elif kept is not None and not kept.unread:
                work.repeat(reading, kept)
            else:
                late = late or id(reading) in unlooked or too_late()
                if kept is not None:  # it was sent unchanged, and stays so
                    caught_up = None if late else work.catch_up(reading, too_late)
                    late = caught_up is None
                    work.repeat(reading, kept if caught_up is None else caught_up)
                elif late or not work.make(reading, too_late):
                    late = True
                    work.repeat(reading, Kept(unread=True))
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
            self.index.drop(sent.root, sent.ids)

    def rewrite(self, body: bytes, settings: Settings, *, tenant: bytes = b"", session: bytes = b"") -> bytes:
        """The body to send if one engine serves all: `plan` and `commit` of its best form."""
        plan = self.plan(body, settings, tenant=tenant, session=session)
        if plan is None:
            return body
        self.commit(plan, plan.best)
        changed = plan.forms[plan.best].body
        return body if changed is None else changed

    def _remembered(self, key: int) -> Kept | None:
        shard = self._memory[key % _SHARDS]
        kept = shard.get(key)
        if kept is not None:
            shard.move_to_end(key)
        return kept

    def _remember(self, key: int, kept: Kept) -> None:
        number = key % _SHARDS
        shard = self._memory[number]
        before = shard.get(key)
        if before is kept:
            return
        if before is not None:
            self._used_bytes[number] -= before.size_bytes()
        shard[key] = kept
        self._used_bytes[number] += kept.size_bytes()
        while self._used_bytes[number] > self._shard_bytes:
            self._used_bytes[number] -= shard.popitem(last=False)[1].size_bytes()


def _is_searched(text: Text) -> bool:
    return text.place is not None and _LEAST_TEXT_BYTES < len(text.raw) < _MOST_TEXT_BYTES


def _look_at(work: Work, readings: Iterable[Reading], too_late: Callable[[], bool]) -> set[int]:
    """Finds the blocks of these texts; returns the `id`s of those for which there was no time."""
    unlooked: set[int] = set()
    for reading in readings:
        if unlooked or too_late():
            unlooked.add(id(reading))
        else:
            work.look_at(reading)
    return unlooked
