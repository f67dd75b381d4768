"""An engine that publishes KV events as vLLM and SGLang do: a real ZMQ publisher with its replay endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import msgspec
import zmq
import zmq.asyncio

from fairlead.core.prefix_index import PrefixIndex
from fairlead.engines.kv_blocks import PreciseIndex
from fairlead.engines.kv_events import KvEventFeed, KvEventSource, follow

Encoding = Literal["arrays", "maps"]
ADDRESS = "10.0.0.7:8000"
BLOCK = 4
pack = msgspec.msgpack.encode


def stored(
    encoding: Encoding, hashes: Sequence[int | bytes], parent: int | bytes | None, tokens: Sequence[int], **more: Any
) -> Any:
    fields = {"block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": BLOCK}
    rest = {"lora_id": None, "medium": "GPU", "lora_name": None} | more
    if encoding == "maps":
        return {"type": "BlockStored", **fields, **rest}
    return ["BlockStored", *fields.values(), *rest.values()]


def removed(encoding: Encoding, hashes: Sequence[int | bytes], group_idx: int | None = None) -> Any:
    if encoding == "maps":
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": group_idx}
    return ["BlockRemoved", hashes, "GPU", group_idx]


def cleared(encoding: Encoding) -> Any:
    return {"type": "AllBlocksCleared"} if encoding == "maps" else ["AllBlocksCleared"]


def batch(encoding: Encoding, engine_s: float, *events: Any) -> bytes:
    if encoding == "maps":
        return pack({"ts": engine_s, "events": events, "data_parallel_rank": 0})
    return pack([engine_s, events, 0])


class Publisher:
    """Sends what it is given, and remembers it for replays unless told otherwise."""

    def __init__(self, context: zmq.asyncio.Context, encoding: Encoding) -> None:
        self.encoding = encoding
        self.history: list[tuple[int, bytes]] = []
        self.asked_from: list[int] = []
        self.next = 0
        self._sub = context.socket(zmq.XPUB)  # an XPUB is a PUB that also sees who subscribes
        self._replay = context.socket(zmq.ROUTER)
        port = self._sub.bind_to_random_port("tcp://127.0.0.1")
        replay_port = self._replay.bind_to_random_port("tcp://127.0.0.1")
        self.source = KvEventSource(ADDRESS, f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay_port}")

    async def subscribed(self) -> None:
        await self._sub.recv()

    async def send(self, engine_s: float, *events: Any, received: bool = True, kept: bool = True) -> None:
        """A batch; one that is not heard is lost on its way, one that is not kept cannot be replayed."""
        await self.send_raw(batch(self.encoding, engine_s, *events), received=received, kept=kept)

    async def send_raw(self, payload: bytes, *, received: bool = True, kept: bool = True) -> None:
        sequence, self.next = self.next, self.next + 1
        if kept:
            self.history.append((sequence, payload))
        if received:
            await self.send_frames(b"kv-events", sequence.to_bytes(8, "big"), payload)

    async def send_frames(self, *frames: bytes) -> None:
        await self._sub.send_multipart(frames)

    def restart(self) -> None:
        self.next = 0
        self.history.clear()

    async def serve_replays(self) -> None:
        while True:
            client, _, start = await self._replay.recv_multipart()
            self.asked_from.append(int.from_bytes(start, "big"))
            for sequence, payload in self.history:
                if sequence >= self.asked_from[-1]:
                    await self._replay.send_multipart([client, b"", sequence.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([client, b"", b"\xff" * 8, b""])


class KvWorld:
    """One publishing engine, the feed that follows it, and both indexes."""

    def __init__(self, publisher: Publisher, feed: KvEventFeed, precise: PreciseIndex, index: PrefixIndex) -> None:
        self.publisher = publisher
        self.feed = feed
        self.precise = precise
        self.index = index
        self.now_s = 1000.0

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for what must come; the feed's counts are in the failure if it does not."""
        ends_s = time.monotonic() + 60
        while not true():
            assert time.monotonic() < ends_s, self.feed.counts
            await asyncio.sleep(0.002)

    async def taken(self, batches: int) -> None:
        await self.until(lambda: self.feed.counts.batches >= batches)

    def held(self, *tokens: int) -> int:
        return self.precise.match(tokens, ADDRESS)


@asynccontextmanager
async def kv_world(encoding: Encoding, *, replay: bool = True, max_blocks: int = 1000) -> AsyncIterator[KvWorld]:
    context = zmq.asyncio.Context()
    publisher = Publisher(context, encoding)
    source = publisher.source if replay else KvEventSource(ADDRESS, publisher.source.events)
    precise, index = PreciseIndex(max_blocks=max_blocks), PrefixIndex()
    world = KvWorld(publisher, KvEventFeed(source, precise, index, lambda: world.now_s, slack_s=5), precise, index)
    tasks = [asyncio.create_task(publisher.serve_replays()), asyncio.create_task(follow([world.feed]))]
    try:
        async with asyncio.timeout(60):
            await publisher.subscribed()
            yield world
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        context.destroy(linger=0)
