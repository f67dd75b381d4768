"""What a million blocks and a million sessions weigh: growth of the resident memory of a process that holds just them.

`python -m fairlead.tools.bench.tables.memory blocks 512 1000000` fills a prefix index with prompts of 512 blocks, and
`... sessions 1000000` a session table; each prints one JSON line. What the index itself counts is reported with it: its
byte budget is only worth something if it is not less than what the kernel sees.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from random import Random
from typing import Final

import msgspec

from fairlead.core.facts import session_key
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.sessions import SessionTable
from fairlead.serving.memory import spare_from_collection
from fairlead.tools.bench.processes import child, resident_bytes
from fairlead.tools.bench.tables.prefixes import addresses_of, new_chain

PROMPT_BLOCKS: Final = (8, 64, 512, 2048)
_ENDPOINTS: Final = 64
_ENOUGH: Final = 1 << 40
_BINDS_PER_S: Final = 1000
_COLLECTIONS: Final = 3


class Weight(msgspec.Struct, frozen=True):
    """Bytes of `count` things. `counted_bytes` is what the table itself takes them for, where it counts.

    `collection_ms` is a full garbage collection, which stops every request: what a table shows to the collector, it
    looks at one by one.
    """

    what: str
    count: int
    resident_bytes: int
    counted_bytes: int | None
    collection_ms: float

    def mib_per_million(self) -> float:
        return self.resident_bytes / self.count * 1e6 / 2**20


def kinds(count: int) -> list[tuple[str, ...]]:
    """Arguments of the processes that are weighed."""
    return [*(("blocks", str(blocks), str(count)) for blocks in PROMPT_BLOCKS), ("sessions", str(count))]


async def measure(arguments: tuple[str, ...]) -> Weight:
    """Weigh in a process of its own."""
    async with child("fairlead.tools.bench.tables.memory", *arguments) as filled:
        return msgspec.json.decode(await filled.output(), type=Weight)


def blocks(prompt_blocks: int, count: int) -> Weight:
    """`count` blocks in prompts that share nothing, each held by one endpoint."""
    rng, addresses = Random(0), addresses_of(_ENDPOINTS)
    index = PrefixIndex(max_bytes=_ENOUGH)
    for address in addresses:
        index.set_capacity(address, count)
    spare_from_collection()  # as `serve` does when it has started
    before_bytes, before_counted = _resident(), index.used_bytes
    for number in range(count // prompt_blocks):
        index.insert(new_chain(rng, prompt_blocks), addresses[number % _ENDPOINTS], 0.0)
    held = sum(map(index.blocks, addresses))
    what = f"blocks, in prompts of {prompt_blocks:,}"
    collection_ms = _collection_ms()
    return Weight(what, held, _resident() - before_bytes, index.used_bytes - before_counted, collection_ms)


def sessions(count: int) -> Weight:
    """`count` sessions bound one after the other, in a table with room for no more."""
    addresses = addresses_of(_ENDPOINTS)
    before_bytes = _resident()
    table = SessionTable(max_entries=count, ttl_s=_ENOUGH)
    spare_from_collection()
    for number in range(count):
        key = session_key(b"session-%d" % number)
        table.bind(key, addresses[number % _ENDPOINTS], number / _BINDS_PER_S)
    collection_ms = _collection_ms()
    return Weight("sessions", table.count, _resident() - before_bytes, None, collection_ms)


def _resident() -> int:
    return resident_bytes(os.getpid())


def _collection_ms() -> float:
    """The least of a few: the first has to clean up."""
    times_ms = []
    for _ in range(_COLLECTIONS):
        started_s = time.perf_counter()
        gc.collect()
        times_ms.append((time.perf_counter() - started_s) * 1e3)
    return min(times_ms)


def main(arguments: list[str]) -> None:
    counts = [int(argument) for argument in arguments[1:]]
    weight = blocks(*counts) if arguments[0] == "blocks" else sessions(*counts)
    print(msgspec.json.encode(weight).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
