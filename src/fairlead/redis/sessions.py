"""The session table shared over Redis: every sidecar holds every binding, and no request ever waits for one.

A binding made here is claimed in Redis right after, and Redis notifies all sidecars of the winner, so that the next
turn finds it wherever it arrives. First writer wins: a claim names the address that the session had before, and an
outdated claim changes only our own table. Keys are `fairlead:session:<hex>`, values addresses, both readable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from secrets import token_hex
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from fairlead.core.sessions import SessionTable
from fairlead.redis.link import LONGEST_ADDRESS, SCRIPT_S, address_in, answered
from fairlead.redis.reading import values

KEY_PREFIX: Final = "fairlead:session:"
MOST_PENDING: Final = 100_000  # claims that wait for Redis, some 10 MB

_BATCH: Final = 256  # claims in one round trip; Redis is busy with it for less than a millisecond
_BATCH_PAUSE_S: Final = 0.005  # claims made in this time share a round trip; no next turn comes sooner
_SCAN_BATCH: Final = 200
_MOST_SCANS: Final = 200_000  # for a database full of other programs' keys

# Claims sessions for addresses. KEYS: sessions. ARGV: writer, channel, TTL in ms, and for each key the address it had
# (empty: none) and the new one. A claim holds if Redis has no address, the one it had, or the new one already.
# Publishes the claims that held; returns, for those that did not, the index from 1 and the address that stays.
_CLAIM: Final = """
local won, lost = {ARGV[1]}, {}
for i, key in ipairs(KEYS) do
  local was, wanted = ARGV[2 * i + 2], ARGV[2 * i + 3]
  local now = redis.pcall('GETRANGE', key, 0, LONGEST)
  if now.err and string.sub(now.err, 1, 9) ~= 'WRONGTYPE' then
    return now
  end
  if now == '' or now.err or now == was or now == wanted then
    redis.call('SET', key, wanted, 'PX', ARGV[3])
    won[#won + 1] = string.sub(key, -32) .. ' ' .. wanted
  else
    lost[#lost + 1] = i
    lost[#lost + 1] = now
  end
end
if #won > 1 then
  redis.call('PUBLISH', ARGV[2], table.concat(won, '\\n'))
end
return lost
""".replace("LONGEST", str(LONGEST_ADDRESS))


class RedisSessions:
    """Keeps `table` and Redis in step, off the request path. Public counts are for metrics."""

    def __init__(self, table: SessionTable, database: int, clock_s: Callable[[], float]) -> None:
        self.channel = f"fairlead:sessions:{database}"  # channels, unlike keys, are common to all databases
        self.written = 0  # claims that held, first ones and renewals
        self.conflicts = 0  # claims that another sidecar had won
        self.dropped = 0  # claims not made, because too many waited
        self.learned = 0  # bindings of other sidecars put into our table
        self.malformed = 0  # messages and keys in Redis that are not ours
        self._table = table
        self._clock_s = clock_s
        self._writer = token_hex(8)
        self._own = self._writer.encode() + b"\n"
        self._pending: dict[bytes, str | None] = {}  # sessions to claim, with the address they had before
        self._in_flight: dict[bytes, str | None] = {}  # the same for claims that Redis is deciding
        self._updated: set[bytes] | None = (
            None  # sessions updated by others while Redis is queried: newer than its answer
        )
        self._wake = asyncio.Event()
        table.listener = self._changed

    @property
    def pending(self) -> int:
        """Claims that Redis has not yet decided."""
        return len(self._pending) + len(self._in_flight)

    def waits(self, session: bytes) -> bool:
        """Whether a claim of `session` has not been decided by Redis."""
        return session in self._pending or session in self._in_flight

    def _changed(self, session: bytes, before: str | None) -> None:
        """The request path bound or used a session; several changes before the next claim are one."""
        pending = self._pending
        if session in pending:
            return
        if len(pending) >= MOST_PENDING:
            self.dropped += 1
            return
        pending[session] = before
        if not self._wake.is_set():
            self._wake.set()

    def received(self, message: bytes) -> None:
        """Claims that held: a writer's name, then lines of session and address."""
        if message.startswith(self._own):
            return
        now_s = self._clock_s()
        for line in message.split(b"\n")[1:]:
            session, address = _session(line[:32]), address_in(line[33:])
            if session is None or address is None:
                self.malformed += 1
                continue
            if address in (self._pending.get(session), self._in_flight.get(session)):
                continue  # a renewal of the binding that our own change replaces
            if self._updated is not None:
                self._updated.add(session)
            self._pending.pop(session, None)
            self._learn(session, address, now_s)

    async def serve(self, redis: Redis) -> None:
        """Load what is in Redis, then write what changes here."""
        claim = redis.register_script(_CLAIM)
        self._table.notify_all_again()  # Redis may have lost what we once wrote
        await self._load(redis, claim)
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write(claim)
            await asyncio.sleep(_BATCH_PAUSE_S)

    async def leave(self, redis: Redis) -> None:
        await self._write(redis.register_script(_CLAIM))

    async def _write(self, claim: AsyncScript) -> None:
        while self._pending:
            batch = list(islice(self._pending.items(), _BATCH))
            claims = [(session, was, to) for session, was in batch if (to := self._table.address_of(session))]
            for session, _ in batch:
                del self._pending[session]
            if not claims:
                continue
            keys = [KEY_PREFIX + session.hex() for session, _, _ in claims]
            addresses = [address or "" for _, was, to in claims for address in (was, to)]
            ttl_ms = self._table.ttl_s * 1000
            self._in_flight = dict(batch)
            try:
                with self._asking() as updated:
                    lost = await answered(claim(keys, [self._writer, self.channel, ttl_ms, *addresses]), SCRIPT_S)
            except BaseException:
                self._pending = dict(batch) | self._pending | dict(batch)  # the oldest previous address counts
                self._wake.set()
                raise
            finally:
                self._in_flight = {}
            self._settle(claims, list(_pairs(lost)), updated)

    def _settle(
        self, claims: list[tuple[bytes, str | None, str]], lost: list[tuple[int, bytes]], updated: set[bytes]
    ) -> None:
        self.written += len(claims) - len(lost)
        self.conflicts += len(lost)
        now_s = self._clock_s()
        for number, value in lost:
            session, address = claims[number - 1][0], address_in(value)
            if address is None:
                self.malformed += 1
            elif session not in updated:
                self._pending.pop(session, None)
                self._learn(session, address, now_s)

    async def _load(self, redis: Redis, claim: AsyncScript) -> None:
        """Load all bindings, as far as the table has room; claims made meanwhile are written in between."""
        cursor = 0
        for _ in range(_MOST_SCANS):
            with self._asking() as updated:
                cursor, keys = await answered(redis.scan(cursor, match=KEY_PREFIX + "*", count=_SCAN_BATCH))
                addresses = await values(redis, cast(list[bytes], keys), LONGEST_ADDRESS + 1)
            self._loaded(cast(list[bytes], keys), addresses, updated)
            await self._write(claim)
            if not cursor or self._table.count >= self._table.max_entries - _SCAN_BATCH:
                return

    def _loaded(self, keys: list[bytes], addresses: list[bytes], updated: set[bytes]) -> None:
        now_s = self._clock_s()
        for key, value in zip(keys, addresses, strict=True):
            if not value:
                continue  # expired since the scan
            session, address = _session(key[len(KEY_PREFIX) :]), address_in(value)
            if session is None or address is None:
                self.malformed += 1
            elif session not in updated and session not in self._pending:
                self._learn(session, address, now_s)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[set[bytes]]:
        """Collects the updates of others while Redis is queried: they are at least as new as its answer."""
        updated: set[bytes] = set()
        self._updated = updated
        try:
            yield updated
        finally:
            self._updated = None

    def _learn(self, session: bytes, address: str, now_s: float) -> None:
        self.learned += 1
        self._table.learn(session, address, now_s)


def _pairs(flat: list[Any]) -> Iterator[tuple[int, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _session(text: bytes) -> bytes | None:
    try:
        session = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return None
    return session if len(session) == 16 else None
