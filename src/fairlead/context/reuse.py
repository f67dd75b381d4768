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

from fairlead.context.draft import Settings
from fairlead.context.forms import Form, Kept, Work
from fairlead.context.index import ContextIndex
from fairlead.context.texts import read_texts

LIMIT_S: Final = 0.005
DEFAULT_MEMORY_BYTES: Final = 64 * 1024 * 1024

_SHARDS: Final = 16  # growing a table copies it: many small ones, so that no request waits for a large one
_LEAST_TEXT_BYTES: Final = 64  # a shorter text has no blocks worth looking for
_MOST_TEXT_BYTES: Final = 256 * 1024  # some 3 ms; of a longer one nothing is read


class Plan(msgspec.Struct, frozen=True):
    """The forms that a request may take; the first has every new group in the order received."""

    forms: tuple[Form, ...]
    best: int  # the form that repeats most of what was sent before


class Counts:
    """Since the start; those of requests that were changed and of tokens are the request path's."""

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
        self.late = 0  # requests of which texts went on unread, as the time was over
        self.failures = 0
        self.last_failure = ""
        self.reordered_tokens = 0  # found in a cache thanks to another order
        self.dropped_tokens = 0


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
        self._clock_s = clock_s
        self._limit_s = limit_s
        self._shard_bytes = memory_bytes // _SHARDS
        # By the hash of a conversation up to and with a text.
        self._memory: tuple[OrderedDict[int, Kept], ...] = tuple(OrderedDict() for _ in range(_SHARDS))
        self._used_bytes = [0] * _SHARDS

    @property
    def used_bytes(self) -> int:
        """Of the memory of conversations, about."""
        return sum(self._used_bytes)

    def plan(self, body: bytes, settings: Settings, *, tenant: bytes = b"", session: bytes = b"") -> Plan | None:
        """How `body` may be sent; None if it has no text that could be changed, or is no JSON that an engine takes.

        After `limit_s` texts that are not remembered go on as they are, now and whenever they come again.
        """
        try:
            texts = read_texts(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        deadline_s = self._clock_s() + self._limit_s
        work = Work(self.index, settings, tenant, session)
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
                work.repeat(text, Kept())
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
        """The body to send where one engine serves all: `plan` and `commit` of its best form."""
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
        if key in shard:
            return
        shard[key] = kept
        self._used_bytes[number] += kept.size_bytes()
        while self._used_bytes[number] > self._shard_bytes:
            self._used_bytes[number] -= shard.popitem(last=False)[1].size_bytes()
