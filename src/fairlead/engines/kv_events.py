"""The KV events of one engine, over ZMQ: kept in order, repaired when some are lost, and applied to the indexes.

- `PreciseIndex` (`engines.kv_blocks`) learns each block with its tokens, for callers that have token ids.
- The byte-based `PrefixIndex` of the request path is corrected without tokenizing a prompt, by facts that hold whoever
  sent the requests, other routers included: a cleared cache or a restart drops the endpoint's entries, and a removed
  block shows how far eviction has come. Engines evict what was used longest ago, and a block was used no earlier than
  it was stored; so whatever was last used before the removed block was stored is already evicted. `slack_s` allows for
  requests that were running meanwhile, whose blocks count as used until they end.

Messages are numbered. Missing ones are requested from the replay endpoint, together with the last one received: if that
one differs, another process answers, and everything is dropped. What the replay cannot provide is lost: then the
endpoint's blocks are dropped from the precise index, which must not miss a removal; the byte index stays, as it is an
estimate anyway.

What it does not do: attribute blocks to requests (guessing by time or size fails under load), put other
routers' prompts into the byte index (their bytes are not known), or follow several data-parallel ranks behind one
address (each publishes at a port of its own: give each rank its own endpoint).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog
import xxhash
import zmq
import zmq.asyncio

from fairlead.core.prefix_index import PrefixIndex
from fairlead.engines.kv_blocks import PreciseIndex
from fairlead.engines.kv_event_messages import SEQUENCE_BYTES, read_batch, read_sequence

DEFAULT_SLACK_S: Final = 15.0
_MOST_BYTES: Final = 8 * 1024 * 1024  # for one message; a larger one closes the connection, and is then missing
_MOST_WAITING: Final = 100_000  # messages queued while a replay is read
_REPLAY_S: Final = 5.0  # for each message of a replay: the publisher looks for requests every 0.1 s
_RECONNECT_MOST_MS: Final = 5000
_PAUSE_AFTER_FAULT_S: Final = 1.0

log = structlog.get_logger("fairlead.engines")


@dataclass(frozen=True, slots=True)
class KvEventSource:
    """Where an endpoint publishes: ZMQ addresses such as `tcp://10.0.0.7:5557`."""

    address: str  # the endpoint's address in the pool
    events: str
    replay: str | None = None
    topic: str = ""  # only messages whose topic starts with it; empty: all


@dataclass(slots=True)
class KvEventCounts:
    """Since the feed began."""

    batches: int = 0
    garbage: int = 0  # invalid messages: skipped
    unreadable: int = 0  # batches that may have hidden a removal: the endpoint's blocks were dropped
    skipped_events: int = 0  # events of unknown kinds, and unreadable stores
    unplaced: int = 0  # batches that stored blocks after unknown ones
    gaps: int = 0
    replayed: int = 0  # batches received by replay
    lost: int = 0  # gaps that no replay filled: the endpoint's blocks were dropped
    restarts: int = 0
    cleared: int = 0
    overflows: int = 0  # more blocks than the precise index may keep: all of the endpoint's were dropped
    faults: int = 0  # our own exceptions, and socket failures


class KvEventFeed:
    """`run` updates both indexes until it is cancelled, and raises nothing else."""

    def __init__(
        self,
        source: KvEventSource,
        precise: PreciseIndex,
        index: PrefixIndex,
        clock_s: Callable[[], float],
        *,
        slack_s: float = DEFAULT_SLACK_S,
    ) -> None:
        self.source = source
        self.counts = KvEventCounts()
        self._precise = precise
        self._index = index
        self._clock_s = clock_s
        self._slack_s = slack_s
        self._applied: int | None = None  # sequence number of the last batch applied
        self._digest = 0  # digest of that batch

    async def run(self, context: zmq.asyncio.Context) -> None:
        while True:
            try:
                await self._follow(context)
            except Exception:  # any error: the next event may still be fine
                self.counts.faults += 1
                self._precise.forget(self.source.address)
                log.exception("KV events failed", endpoint=self.source.address, faults=self.counts.faults)
            await asyncio.sleep(_PAUSE_AFTER_FAULT_S)

    def restarted(self) -> None:
        """The engine is a new process: nothing is known of what it holds."""
        self._applied = None
        self._precise.forget(self.source.address)

    async def _follow(self, context: zmq.asyncio.Context) -> None:
        with _socket(context, zmq.SUB) as socket:
            socket.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
            socket.connect(self.source.events)
            while True:
                frames = await socket.recv_multipart()
                sequence = read_sequence(frames[1]) if len(frames) == 3 else None
                if sequence is None:
                    self.counts.garbage += 1
                else:
                    await self._received(context, sequence, frames[2])
                await asyncio.sleep(0)  # a queued message is returned without a pause: let requests run in between

    async def _received(self, context: zmq.asyncio.Context, sequence: int, payload: bytes) -> None:
        if self._applied is not None and sequence <= self._applied:  # ZMQ keeps order, so a new process counts from 0
            self._another_process()
        if sequence != self._next():
            await self._repair(context, sequence)
        self._apply(sequence, payload, live=True)

    def _next(self) -> int:
        return 0 if self._applied is None else self._applied + 1

    # ---- loss ---------------------------------------------------------------------------------------------------

    async def _repair(self, context: zmq.asyncio.Context, until: int) -> None:
        """Apply what is missing before message `until`."""
        if self._applied is not None:
            self.counts.gaps += 1
            if not await self._replay(context, until, self._applied):
                self._another_process()
        if self._applied is None:  # first message: replay all the history there is
            await self._replay(context, until, None)
        if self._applied is not None and self._applied < until - 1:
            self._lost()

    async def _replay(self, context: zmq.asyncio.Context, until: int, known: int | None) -> bool:
        """Apply the replayed batches after `known`; False if `known` was from another process."""
        async with aclosing(self._replayed(context, until, known or 0)) as batches:
            async for sequence, payload in batches:
                if sequence == known:
                    if xxhash.xxh3_64_intdigest(payload) != self._digest:
                        return False
                elif self._applied is None or sequence == self._applied + 1:
                    self.counts.replayed += 1
                    self._apply(sequence, payload, live=False)
                elif sequence > self._applied:  # the publisher's history does not reach back that far
                    self._lost()
                    self._apply(sequence, payload, live=False)
                await asyncio.sleep(0)
        return True

    async def _replayed(
        self, context: zmq.asyncio.Context, until: int, start: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """The batches from `start` on that the replay endpoint still has, until it falls silent."""
        if self.source.replay is None:
            return
        with _socket(context, zmq.DEALER) as socket:  # a new socket each time, so that late answers are ignored
            socket.connect(self.source.replay)
            await socket.send_multipart([b"", start.to_bytes(SEQUENCE_BYTES, "big")])
            previous = -1
            while True:
                try:
                    async with asyncio.timeout(_REPLAY_S):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    return
                sequence = read_sequence(frames[-2]) if len(frames) >= 2 else None
                # The end, or messages that the subscription delivers anyway, or no replay at all.
                if sequence is None or sequence >= until or sequence <= previous:
                    return
                previous = sequence
                yield sequence, frames[-1]

    def _lost(self) -> None:
        self.counts.lost += 1
        self._precise.forget(self.source.address)

    def _another_process(self) -> None:
        self.counts.restarts += 1
        self.restarted()
        self._index.forget(self.source.address)

    # ---- applying ------------------------------------------------------------------------------------------------

    def _apply(self, sequence: int, payload: bytes, *, live: bool) -> None:
        """Apply one batch. Only a live one shows how far eviction is now: a replayed one is from some time ago."""
        counts, address = self.counts, self.source.address
        self._applied, self._digest = sequence, xxhash.xxh3_64_intdigest(payload)
        counts.batches += 1
        batch = read_batch(payload)
        if batch is None:
            counts.unreadable += 1
            self._precise.forget(address)
            return
        done = self._precise.apply(address, batch)
        counts.skipped_events += batch.skipped_events
        counts.unplaced += done.unplaced > 0
        counts.overflows += done.overflowed
        if done.cleared:
            counts.cleared += 1
            self._index.forget(address)
        if live and done.removed_age_s is not None and done.removed_age_s >= 0:  # else its clock was set back
            self._index.evicted_before(address, self._clock_s() - done.removed_age_s - self._slack_s)


async def follow(feeds: Iterable[KvEventFeed]) -> None:
    """Run all feeds until cancelled; ZMQ uses one thread for all of them."""
    context = zmq.asyncio.Context()
    try:
        async with asyncio.TaskGroup() as running:
            for feed in feeds:
                running.create_task(feed.run(context))
    finally:
        context.destroy(linger=0)


def _socket(context: zmq.asyncio.Context, kind: zmq.SocketType) -> zmq.asyncio.Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, _MOST_WAITING)
    socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MOST_MS)
    return socket
