"""Session table: the endpoint that each session is bound to. It stores; who binds and rebinds is the router's business.

Bounded twice: a session unused for `ttl_s` is gone, and beyond `max_entries` the session unused longest goes first.
Least recently used is enough against floods of sessions that appear once: a session in use is lost only if, between
two of its turns, as many others were seen as the table holds, and then it loses its binding but not its cached prefix,
which the prefix index still finds.

About 220 bytes a session, because entries share their endpoint and their times. The table is split into shards of some
16,000: a dictionary of a million rehashes for 130 ms now and then, and requests would wait for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

import msgspec

DEFAULT_TTL_S: Final = 3600
DEFAULT_MAX_ENTRIES: Final = 1_000_000

_SHARD_ENTRIES: Final = 16_384
_MOST_SHARDS: Final = 64
_PERIODS_PER_TTL: Final = 8
_SWEPT_AT_ONCE: Final = 100  # of a shard, where no new session comes
_SWEPT_PER_BIND: Final = 2  # more than a bind adds, so that expired sessions never pile up
_UNORDERED_S: Final = 1  # callers read the clock before they are called, so it may seem to go back by a second


class SessionFacts(msgspec.Struct, frozen=True, gc=False):
    """One session, for people."""

    address: str
    bound_for_s: int
    idle_s: int


class Moved(msgspec.Struct, frozen=True, gc=False):
    """What a move makes of a session: how often it has moved by now, and whether it came back to where it had left."""

    times: int
    back: bool


class _Bound(msgspec.Struct, gc=False):
    address: str
    sessions: int = 0
    gone: bool = False


class _Moves(msgspec.Struct, gc=False):
    tried_s: int  # the last of them, whether it succeeded or not
    times: int = 0
    left: str = ""  # the address it was moved from last; empty if another sidecar moved it and does not say
    elsewhere: bool = False  # that move was another sidecar's


class _Entry(msgspec.Struct, gc=False):
    bound: _Bound
    bound_s: int
    used_s: int
    moves: _Moves | None = None  # of the few that were ever moved


_Shard = OrderedDict[bytes, _Entry]  # the session unused longest is the first

Listener = Callable[[bytes, str | None], None]


class SessionTable:
    """Sessions (16-byte keys of `facts.session_key`) and the endpoints that they are bound to. Every method is O(1)
    unless it says otherwise.

    `now_s` may come from any clock that seldom goes back; when it does, the table's own time goes on from there.
    `listener`, where set, is notified of each session that was bound or moved here, and again some eight times a TTL
    while it is used, with the address it had before; a store that shares the table writes those sessions out.
    """

    def __init__(self, *, ttl_s: int = DEFAULT_TTL_S, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        shards = 1
        while shards < _MOST_SHARDS and max_entries > shards * _SHARD_ENTRIES:
            shards *= 2
        self.ttl_s = ttl_s
        self.max_entries = max_entries
        self.listener: Listener | None = None
        self._shards: tuple[_Shard, ...] = tuple(OrderedDict() for _ in range(shards))
        self._mask = shards - 1
        self._shard_entries = max_entries // shards
        self._endpoints: dict[str, _Bound] = {}
        self._now_s = 0
        self._behind_s = 0  # how far the caller's clock has gone back
        self._period_s = 0  # a session last used before this is notified at its next use

    # ---- the request path ---------------------------------------------------------------------------------------

    def endpoint_of(self, session: bytes, now_s: float) -> str | None:
        """Where `session` is bound, which counts as a use; None if it is new, expired, or its endpoint is forgotten."""
        shard = self._shards[hash(session) & self._mask]
        entry = shard.get(session)
        if entry is None:
            return None
        bound, used_s = entry.bound, entry.used_s
        now = self._second(now_s)
        if bound.gone:
            return None  # the entry stays until it is bound again, to notify the listener where it was
        if now - used_s > self.ttl_s:
            self._remove(shard, session)
            return None
        entry.used_s = now
        shard.move_to_end(session)
        if used_s < self._period_s and self.listener is not None:
            self.listener(session, bound.address)
        return bound.address

    def bind(self, session: bytes, address: str, now_s: float) -> None:
        """`session` is bound to `address` from now on, wherever it was before."""
        before = self._put(session, address, now_s)
        if self.listener is not None:
            self.listener(session, before)

    def flip(self, session: bytes, source: str, target: str, now_s: float) -> bool:
        """Move `session` to `target` if it is bound to `source`, as a migration does once the cache has been copied."""
        if self.address_of(session) != source:
            return False
        self.bind(session, target, now_s)
        return True

    def since_move_s(self, session: bytes, now_s: float) -> float:
        """Whole seconds since a move of `session` was tried, here or by another sidecar; infinite if none ever was."""
        entry = self._shards[hash(session) & self._mask].get(session)
        if entry is None or entry.moves is None:
            return inf
        return self._second(now_s) - entry.moves.tried_s - 1  # both were cut to a second: never too much

    def left_by_move(self, session: bytes) -> tuple[str, bool] | None:
        """From where the last move took `session`, and whether another sidecar moved it; None if that is not known."""
        entry = self._shards[hash(session) & self._mask].get(session)
        if entry is None or entry.moves is None or not entry.moves.left:
            return None
        return entry.moves.left, entry.moves.elsewhere

    def tried_to_move(self, session: bytes, now_s: float) -> None:
        """A move of `session` begins."""
        entry = self._shards[hash(session) & self._mask].get(session)
        if entry is not None:
            self._begin_move(entry, self._second(now_s))

    def moved(self, session: bytes, source: str, target: str) -> Moved:
        """A move of `session`, which `tried_to_move` began, was made."""
        entry = self._shards[hash(session) & self._mask].get(session)
        if entry is None or entry.moves is None:
            return Moved(1, back=False)
        moves = entry.moves
        back = moves.left == target
        moves.times, moves.left, moves.elsewhere = moves.times + 1, source, False
        return Moved(moves.times, back)

    # ---- off the request path -----------------------------------------------------------------------------------

    def address_of(self, session: bytes) -> str | None:
        """Where `session` is bound, without counting it as used."""
        entry = self._shards[hash(session) & self._mask].get(session)
        if entry is None or entry.bound.gone or self._now_s - entry.used_s > self.ttl_s:
            return None
        return entry.bound.address

    def learn(self, session: bytes, address: str, now_s: float) -> None:
        """As `bind`, of a session that another sidecar bound: nobody is notified. Another endpoint is a move."""
        before = self._put(session, address, now_s)
        if before is not None and before != address:
            self._begin_move(self._shards[hash(session) & self._mask][session], self._now_s).left = ""

    def learn_move(self, session: bytes, source: str, target: str, now_s: float) -> bool:
        """Another sidecar moved `session`; False if it is not bound to `target` by now."""
        if self.address_of(session) != target:
            return False
        entry = self._shards[hash(session) & self._mask][session]
        moves = entry.moves or self._begin_move(entry, self._second(now_s))
        moves.left, moves.elsewhere = source, True
        return True

    def forget_endpoint(self, address: str) -> None:
        """No session is bound to `address` any more."""
        bound = self._endpoints.pop(address, None)
        if bound is not None:
            bound.gone = True

    def notify_all_again(self) -> None:
        """Notify the listener of every session at its next use: what it was notified of before may be lost."""
        self._period_s = self._now_s + 1

    def expire(self, now_s: float) -> None:
        """Remove expired sessions, some of each shard. For a sidecar without new sessions, now and then."""
        now = self._second(now_s)
        for shard in self._shards:
            self._sweep(shard, now, _SWEPT_AT_ONCE)

    @property
    def count(self) -> int:
        """Sessions that are bound, with the expired ones that are not yet removed. O(endpoints)."""
        return sum(bound.sessions for bound in self._endpoints.values())

    def by_endpoint(self) -> Mapping[str, int]:
        """Sessions at each address, as `count`; an address without any is absent. O(endpoints)."""
        return {bound.address: bound.sessions for bound in self._endpoints.values()}

    def about(self, session: bytes, now_s: float) -> SessionFacts | None:
        """What the table knows of `session`, without counting it as used."""
        now = self._second(now_s)
        address = self.address_of(session)
        if address is None:
            return None
        entry = self._shards[hash(session) & self._mask][session]
        return SessionFacts(address, now - entry.bound_s, now - entry.used_s)

    # ---- inside -------------------------------------------------------------------------------------------------

    @staticmethod
    def _begin_move(entry: _Entry, now: int) -> _Moves:
        if entry.moves is None:
            entry.moves = _Moves(now)
        else:
            entry.moves.tried_s = now
        return entry.moves

    def _put(self, session: bytes, address: str, now_s: float) -> str | None:
        """Bind, and return the address of before."""
        now = self._second(now_s)
        shard = self._shards[hash(session) & self._mask]
        entry = shard.get(session)
        if entry is None:
            before = None
            self._sweep(shard, now, _SWEPT_PER_BIND)
            if len(shard) >= self._shard_entries:
                self._remove(shard, next(iter(shard)))
            shard[session] = _Entry(self._moved_in(address), now, now)
            return before
        bound, before = entry.bound, entry.bound.address
        if bound.gone or before != address:
            self._moved_out(bound)
            entry.bound = self._moved_in(address)
            entry.bound_s = now
        entry.used_s = now
        shard.move_to_end(session)
        return before

    def _moved_in(self, address: str) -> _Bound:
        bound = self._endpoints.get(address)
        if bound is None:
            bound = self._endpoints[address] = _Bound(address)
        bound.sessions += 1
        return bound

    def _moved_out(self, bound: _Bound) -> None:
        bound.sessions -= 1
        if not bound.sessions and not bound.gone:
            del self._endpoints[bound.address]

    def _remove(self, shard: _Shard, session: bytes) -> None:
        self._moved_out(shard.pop(session).bound)

    def _sweep(self, shard: _Shard, now: int, most: int) -> None:
        for _ in range(min(most, len(shard))):
            session = next(iter(shard))
            entry = shard[session]
            if not entry.bound.gone and now - entry.used_s <= self.ttl_s:
                return
            self._remove(shard, session)

    def _second(self, now_s: float) -> int:
        """The table's time, which never goes back, so that the first of each shard is the one that expires first.

        Within a second it is the same object, shared by all entries of that second.
        """
        now = int(now_s) + self._behind_s
        if now > self._now_s:
            self._now_s = now
            if now - self._period_s >= self.ttl_s / _PERIODS_PER_TTL:
                self._period_s = now
        elif now < self._now_s - _UNORDERED_S:
            self._behind_s += self._now_s - now
        return self._now_s
