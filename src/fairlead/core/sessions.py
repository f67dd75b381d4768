"""Session table: on which endpoint each session lives. It stores; who binds and rebinds is the router's business.

Bounded twice: a session unused for `ttl_s` is gone, and beyond `max_entries` the session unused longest goes first.
Least recently used is enough against floods of sessions that appear once: a session in use is lost only if, between
two of its turns, as many others were seen as the table holds, and then it loses its host but not its cached prefix,
which the prefix index still finds.

About 220 bytes a session, because entries share their host and their times. The table is split into shards of some
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


class _Host(msgspec.Struct, gc=False):
    address: str
    sessions: int = 0
    gone: bool = False


class _Moves(msgspec.Struct, gc=False):
    tried_s: int  # the last of them, whether it succeeded or not
    times: int = 0
    left: str = ""  # the address it was moved from last; empty if another sidecar has moved it since


class _Entry(msgspec.Struct, gc=False):
    host: _Host
    bound_s: int
    used_s: int
    moves: _Moves | None = None  # of the few that were ever moved


_Shard = OrderedDict[bytes, _Entry]  # the session unused longest is the first

Listener = Callable[[bytes, str | None], None]


class SessionTable:
    """Sessions (16-byte keys of `facts.session_key`) and their hosts. Every method is O(1) unless it says otherwise.

    `now_s` may come from any clock that seldom goes back; when it does, the table's own time goes on from there.
    `listener`, where set, is told of each session that was bound or moved here, and again some eight times a TTL while
    it is used, with the address it had before; a store that shares the table writes those sessions out.
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
        self._hosts: dict[str, _Host] = {}
        self._now_s = 0
        self._behind_s = 0  # how far the caller's clock has gone back
        self._period_s = 0  # a session last used before this is told to the listener at its next use

    # ---- the request path ---------------------------------------------------------------------------------------

    def host(self, session: bytes, now_s: float) -> str | None:
        """Where `session` lives, which counts as a use of it; None if it is new, expired, or its host was forgotten."""
        shard = self._shards[hash(session) & self._mask]
        entry = shard.get(session)
        if entry is None:
            return None
        host, used_s = entry.host, entry.used_s
        now = self._second(now_s)
        if host.gone:
            return None  # the entry stays until it is bound again, to tell the listener where it was
        if now - used_s > self.ttl_s:
            self._remove(shard, session)
            return None
        entry.used_s = now
        shard.move_to_end(session)
        if used_s < self._period_s and self.listener is not None:
            self.listener(session, host.address)
        return host.address

    def bind(self, session: bytes, address: str, now_s: float) -> None:
        """`session` lives at `address` from now on, wherever it was before."""
        before = self._put(session, address, now_s)
        if self.listener is not None:
            self.listener(session, before)

    def flip(self, session: bytes, source: str, target: str, now_s: float) -> bool:
        """Move `session` to `target` if it lives at `source`, as a migration does once the cache has been copied."""
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

    def was_moved_here(self, session: bytes) -> bool:
        """Whether `session` lives where a move of this sidecar took it."""
        entry = self._shards[hash(session) & self._mask].get(session)
        return entry is not None and entry.moves is not None and bool(entry.moves.left)

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
        moves.times, moves.left = moves.times + 1, source
        return Moved(moves.times, back)

    # ---- beside it ----------------------------------------------------------------------------------------------

    def address_of(self, session: bytes) -> str | None:
        """Where `session` lives, without counting it as used."""
        entry = self._shards[hash(session) & self._mask].get(session)
        if entry is None or entry.host.gone or self._now_s - entry.used_s > self.ttl_s:
            return None
        return entry.host.address

    def learn(self, session: bytes, address: str, now_s: float) -> None:
        """As `bind`, of a session that another sidecar bound: the listener is not told. Another host is a move."""
        before = self._put(session, address, now_s)
        if before is not None and before != address:
            self._begin_move(self._shards[hash(session) & self._mask][session], self._now_s).left = ""

    def forget_host(self, address: str) -> None:
        """Nobody lives at `address` any more."""
        host = self._hosts.pop(address, None)
        if host is not None:
            host.gone = True

    def tell_all_again(self) -> None:
        """Tell the listener of every session at its next use: what it was told before may be lost."""
        self._period_s = self._now_s + 1

    def expire(self, now_s: float, most: int = 100) -> None:
        """Remove expired sessions, at most `most` of each shard. For a sidecar without new sessions, now and then."""
        now = self._second(now_s)
        for shard in self._shards:
            self._sweep(shard, now, most)

    @property
    def count(self) -> int:
        """Sessions that live somewhere, with the expired ones that are not yet removed. O(hosts)."""
        return sum(host.sessions for host in self._hosts.values())

    def by_host(self) -> Mapping[str, int]:
        """Sessions at each address, as `count`; an address without any is absent. O(hosts)."""
        return {host.address: host.sessions for host in self._hosts.values()}

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
        host, before = entry.host, entry.host.address
        if host.gone or before != address:
            self._moved_out(host)
            entry.host = self._moved_in(address)
            entry.bound_s = now
        entry.used_s = now
        shard.move_to_end(session)
        return before

    def _moved_in(self, address: str) -> _Host:
        host = self._hosts.get(address)
        if host is None:
            host = self._hosts[address] = _Host(address)
        host.sessions += 1
        return host

    def _moved_out(self, host: _Host) -> None:
        host.sessions -= 1
        if not host.sessions and not host.gone:
            del self._hosts[host.address]

    def _remove(self, shard: _Shard, session: bytes) -> None:
        self._moved_out(shard.pop(session).host)

    def _sweep(self, shard: _Shard, now: int, most: int) -> None:
        for _ in range(min(most, len(shard))):
            session = next(iter(shard))
            entry = shard[session]
            if not entry.host.gone and now - entry.used_s <= self.ttl_s:
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
