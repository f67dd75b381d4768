"""The prefix hash chain of a prompt: equal hash at a position means equal bytes up to there.

Blocks are of bytes, not tokens: asking an engine to tokenize each prompt would cost more than routing gains. This
module only makes chains; which endpoint holds which blocks is another module's business.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import xxhash

BLOCK_TOKENS: Final = 128  # about, in a block of English, before anything is known of what is cached
BLOCK_BYTES: Final = 512  # a chain of 256 KiB is made in less than 0.1 ms

MOST_BLOCKS: Final = 8192  # of a chain: 4 MiB, or about a million tokens; what comes after is not looked for in caches

_blocks: Final = Struct(f"{BLOCK_BYTES}s").iter_unpack


def seeded(chain: tuple[int, ...], seed: bytes) -> tuple[int, ...]:
    """`chain` as it would be with `seed`, where that is only known after it was made."""
    mask = xxhash.xxh3_64_intdigest(seed)
    return tuple([block ^ mask for block in chain])


def chain(text: bytes, seed: int = 0) -> tuple[int, ...]:
    """One 64-bit hash for each whole block of `text`, up to MOST_BLOCKS, each seeded by the one before.

    `seed` separates those who must not see each other's prefixes, such as models or tenants.
    """
    digest = xxhash.xxh3_64_intdigest
    whole = min(len(text) - len(text) % BLOCK_BYTES, MOST_BLOCKS * BLOCK_BYTES)
    return tuple([seed := digest(block, seed) for (block,) in _blocks(memoryview(text)[:whole])])


def key_of(text: bytes, end: int, chain: tuple[int, ...], seed: int) -> int:
    """A hash of `text[:end]` to the last byte, with what separates caches: the block's before it, and what is left."""
    whole = min(end // BLOCK_BYTES, len(chain))
    return xxhash.xxh3_64_intdigest(memoryview(text)[whole * BLOCK_BYTES : end], chain[whole - 1] if whole else seed)
