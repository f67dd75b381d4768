"""What the prefix index is made of: runs of blocks, what endpoints hold of them, and each endpoint's order of use.

Runs and holds are invisible to the garbage collector: a full collection would otherwise stop every request for as long
as the index is large.
"""

from __future__ import annotations

from math import inf
from struct import Struct
from typing import Final

import msgspec

from fairlead.core.prefix import BLOCK_TOKENS

BLOCK_BYTES: Final = 8  # of a hash; an `array` would be seen by the garbage collector
hash_at: Final = Struct("@Q").unpack_from


class Run(msgspec.Struct, gc=False, eq=False):
    depth: int  # blocks of the prompt before it
    blocks: bytearray  # the hashes, packed
    holds: dict[str, Hold]  # by address

    @property
    def end(self) -> int:
        return self.depth + len(self.blocks) // BLOCK_BYTES

    @property
    def key(self) -> int:
        first: int = hash_at(self.blocks)[0]
        return first


class Hold(msgspec.Struct, gc=False, eq=False):
    run: Run
    owner: Owner
    end: int  # absolute; everything of the prompt before it is held too
    used_s: float
    older: Hold | None = None
    newer: Hold | None = None

    @property
    def held(self) -> int:
        return self.end - self.run.depth


class Owner:
    """One endpoint's holds, from the least to the most recently used."""

    __slots__ = (
        "address", "block_tokens", "blocks", "capacity", "capacity_tokens", "evicted_s", "forgotten_s", "is_by_age",
        "newest", "oldest",
    )  # fmt: skip

    def __init__(self, address: str, capacity: int, capacity_tokens: float | None) -> None:
        self.address = address
        self.capacity = capacity  # in blocks
        self.capacity_tokens = capacity_tokens  # None: only the blocks are known
        self.block_tokens = float(BLOCK_TOKENS)  # of the blocks held, on average
        self.blocks = 0
        self.oldest: Hold | None = None
        self.newest: Hold | None = None
        self.evicted_s = -inf  # what was last used before this is gone
        self.forgotten_s = -inf  # and what was used until this, at the engine's last restart
        self.is_by_age = False  # has an entry in the index's order of owners

    def grown(self, blocks: int, block_tokens: float) -> None:
        """It holds `blocks` more than before, of `block_tokens` each: of denser text fewer blocks fit."""
        self.block_tokens += (block_tokens - self.block_tokens) * blocks / self.blocks
        self.fit_capacity()

    def fit_capacity(self) -> None:
        if self.capacity_tokens is not None:
            self.capacity = int(self.capacity_tokens / self.block_tokens)

    def link(self, hold: Hold, newer: Hold | None) -> None:
        """Put `hold` just before `newer` in the order of use; None: it is the most recently used."""
        older = self.newest if newer is None else newer.older
        hold.older, hold.newer = older, newer
        if older is None:
            self.oldest = hold
        else:
            older.newer = hold
        if newer is None:
            self.newest = hold
        else:
            newer.older = hold

    def unlink(self, hold: Hold) -> None:
        older, newer = hold.older, hold.newer
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self.newest = older
        else:
            newer.older = older
