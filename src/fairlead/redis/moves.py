"""Moves shared over Redis: what moved of a session, so that every sidecar knows which of its agents went.

A binding alone tells other sidecars where a session is, not whose context is there: agents that share an id share
little more than a system prompt. So a move is published with the prefix chain of what moved, once its binding holds.
Others credit the target with it, and send agents whose context is another one back to where theirs stayed. Keys are
`fairlead:moved:<hex>`, kept as long as an unused session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.sessions import SessionTable
from fairlead.redis.link import LONGEST_ADDRESS, answered
from fairlead.redis.reading import values

KEY_PREFIX: Final = "fairlead:moved:"
MOST_PENDING: Final = 1000
MOST_HASHES: Final = 16_384  # of a chain: 128 KB

_PERIOD_S: Final = 0.02
_SCAN_BATCH: Final = 200  # keys of all kinds, sessions' most of all
_VALUES_AT_ONCE: Final = 20  # one may have 150 KB
_MOST_BYTES: Final = 200_000
_MOST_SCANS: Final = 20_000


class _MoveMessage(msgspec.Struct, frozen=True, array_like=True):
    session: bytes
    source: str
    target: str
    chain: list[int]


class _Pending(NamedTuple):
    message: _MoveMessage
    until_s: float


_decoder = msgspec.msgpack.Decoder(_MoveMessage)
_DECIDED_WITHIN_S: Final = 10.0


class SharedMoves:
    """Publishes the moves of this sidecar, and puts those of others into `table` and `index`."""

    def __init__(
        self,
        table: SessionTable,
        index: PrefixIndex,
        waits: Callable[[bytes], bool],
        database: int,
        clock_s: Callable[[], float],
    ) -> None:
        self.channel = f"fairlead:moves:{database}"
        self.malformed = 0
        self._table = table
        self._index = index
        self._waits = waits  # whether the store has not yet decided a session's binding
        self._clock_s = clock_s
        self._pending: deque[_Pending] = deque(maxlen=MOST_PENDING)
        self._early: deque[_Pending] = deque(maxlen=MOST_PENDING)  # of others, their bindings not known here yet
        self._own: set[bytes] = set()  # messages sent by us that have not come back

    @property
    def pending(self) -> int:
        return len(self._pending)

    def made(self, session: bytes, source: str, target: str, chain: Sequence[int]) -> None:
        """A move of this sidecar was made; called on the request path."""
        message = _MoveMessage(session, source, target, list(chain[:MOST_HASHES]))
        self._pending.append(_Pending(message, self._clock_s() + _DECIDED_WITHIN_S))

    def received(self, message: bytes) -> None:
        if message in self._own:
            self._own.discard(message)
            return
        self._learn(message)

    async def serve(self, redis: Redis) -> None:
        self._own.clear()
        await self._load(redis)
        while True:
            await self._publish(redis)
            self._learn_early()
            await asyncio.sleep(_PERIOD_S)

    async def leave(self, redis: Redis) -> None:
        await self._publish(redis)

    async def _publish(self, redis: Redis) -> None:
        for _ in range(len(self._pending)):
            message, until_s = self._pending[0]
            holds = self._table.address_of(message.session) == message.target
            if (self._waits(message.session) or not holds) and self._clock_s() < until_s:
                self._pending.rotate(-1)  # its binding is published first
                continue
            if holds:  # else another sidecar's binding does
                packed = msgspec.msgpack.encode(message)
                self._own.add(packed)
                await answered(redis.set(KEY_PREFIX + message.session.hex(), packed, px=self._table.ttl_s * 1000))
                await answered(redis.publish(self.channel, packed))
            self._pending.popleft()

    async def _load(self, redis: Redis) -> None:
        cursor = 0
        for _ in range(_MOST_SCANS):
            cursor, keys = await answered(redis.scan(cursor, match=KEY_PREFIX + "*", count=_SCAN_BATCH))
            for start in range(0, len(keys), _VALUES_AT_ONCE):
                some = cast(list[bytes], keys[start : start + _VALUES_AT_ONCE])
                for value in await values(redis, some, _MOST_BYTES):
                    if value:
                        self._learn(value)
            if not cursor:
                return

    def _learn(self, packed: bytes) -> None:
        try:
            move = _decoder.decode(packed)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.malformed += 1
            return
        named = all(0 < len(address) <= LONGEST_ADDRESS for address in (move.source, move.target))
        if len(move.session) != 16 or not named or len(move.chain) > MOST_HASHES:
            self.malformed += 1
            return
        if not self._put(move):
            self._early.append(_Pending(move, self._clock_s() + _DECIDED_WITHIN_S))

    def _put(self, move: _MoveMessage) -> bool:
        if not self._table.learn_move(move.session, move.source, move.target, self._clock_s()):
            return False
        self._index.insert(move.chain, move.target, self._clock_s())
        return True

    def _learn_early(self) -> None:
        for _ in range(len(self._early)):
            move, until_s = self._early.popleft()
            if not self._put(move) and self._clock_s() < until_s:
                self._early.append(_Pending(move, until_s))
