"""What engines hold in their KV caches, token by token, as their KV events say.

Engines name blocks by hashes of their own making, which differ by version, setting and process. Here a block is named
by a chain over its tokens, as the event itself carries them, so that `match` answers for any engine alike. A block is
held until every physical copy of it is removed. Blocks whose content depends on more than tokens (an adapter, an image,
a cache salt) are kept apart and match no plain prompt.

It never says more than was told. It says less where a block follows one that is not known: an engine tells only of
blocks that are new to its cache, so what it held before the first event here is unknown for as long as it stays there.
Of models with several kinds of attention only the blocks of full attention are followed.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import xxhash

from fairlead.engines.kv_event_messages import AllBlocksCleared, Batch, BlockHash, BlockRemoved, BlockStored

DEFAULT_MAX_BLOCKS: Final = 1_000_000  # of one endpoint; some 300 bytes each
_FULL_ATTENTION: Final = (None, "full_attention")
_TOKEN_BYTES: Final = 4

_digest: Final = xxhash.xxh3_64_intdigest

EngineKey = BlockHash | tuple[int, BlockHash]


class _Block(msgspec.Struct, gc=False):
    chain: int
    copies: int
    stored_s: float  # the first of the copies, by the engine's clock


class Applied(msgspec.Struct, frozen=True, gc=False):
    """What a batch did."""

    cleared: bool = False
    removed_age_s: float | None = None  # of the youngest removed block: how long ago it was stored
    unplaced: int = 0  # stored blocks that could not be placed
    overflowed: bool = False  # more blocks than allowed: all were forgotten


class _Held:
    """What one endpoint holds."""

    __slots__ = ("block_sizes", "blocks", "copies")

    def __init__(self) -> None:
        self.blocks: dict[EngineKey, _Block] = {}
        self.copies: dict[int, int] = {}  # by chain: engine blocks of this content
        self.block_sizes: set[int] = set()

    def store(self, event: BlockStored, engine_s: float) -> int:
        """Take in stored blocks; the answer is how many of them could not be placed."""
        hashes, size = event.block_hashes, event.block_size
        if event.kv_cache_spec_kind not in _FULL_ATTENTION or len(event.token_ids) != size * len(hashes):
            return len(hashes)
        if event.parent_block_hash is None:
            chain = size
        else:
            parent = self.blocks.get(_key(event.group_idx, event.parent_block_hash))
            if parent is None:
                return len(hashes)
            chain = parent.chain
        self.block_sizes.add(size)
        tokens, step = array("I", event.token_ids).tobytes(), size * _TOKEN_BYTES
        for n, block_hash in enumerate(hashes):
            chain = _digest(tokens[n * step : (n + 1) * step], _seed(chain, event, n))
            self._add(_key(event.group_idx, block_hash), chain, engine_s)
        return 0

    def _add(self, key: EngineKey, chain: int, engine_s: float) -> None:
        block = self.blocks.get(key)
        if block is not None and block.chain != chain:  # not the same hash function as before: believe the newer
            self._discard(key, block)
            block = None
        if block is None:
            self.blocks[key] = _Block(chain, 1, engine_s)
            self.copies[chain] = self.copies.get(chain, 0) + 1
        else:
            block.copies += 1

    def remove(self, event: BlockRemoved, engine_s: float) -> float | None:
        """Take away a copy of each block; the answer is the age of the youngest known one."""
        youngest_s: float | None = None
        for block_hash in event.block_hashes:
            key = _key(event.group_idx, block_hash)
            block = self.blocks.get(key)
            if block is None:
                continue
            age_s = engine_s - block.stored_s
            youngest_s = age_s if youngest_s is None else min(youngest_s, age_s)
            block.copies -= 1
            if block.copies == 0:
                self._discard(key, block)
        return youngest_s

    def _discard(self, key: EngineKey, block: _Block) -> None:
        del self.blocks[key]
        left = self.copies[block.chain] - 1
        if left:
            self.copies[block.chain] = left
        else:
            del self.copies[block.chain]

    def match(self, tokens: bytes) -> int:
        return max((self._match(tokens, size) for size in self.block_sizes), default=0)

    def _match(self, tokens: bytes, size: int) -> int:
        copies, step, chain, start = self.copies, size * _TOKEN_BYTES, size, 0
        while start + step <= len(tokens):
            chain = _digest(tokens[start : start + step], chain)
            if chain not in copies:
                break
            start += step
        return start // _TOKEN_BYTES


class PreciseIndex:
    """Tokens held by endpoint. Kept by the feeds of `engines.kv_events`, asked by callers that have token ids."""

    def __init__(self, *, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._held: dict[str, _Held] = {}

    def match(self, token_ids: Sequence[int], address: str) -> int:
        """How many tokens of the prompt, from its first, the endpoint holds in whole blocks, as far as is known."""
        held = self._held.get(address)
        return held.match(array("I", token_ids).tobytes()) if held is not None else 0

    def blocks(self) -> Mapping[str, int]:
        """Engine blocks known by endpoint."""
        return {address: len(held.blocks) for address, held in self._held.items()}

    def apply(self, address: str, batch: Batch) -> Applied:
        """Take in what the endpoint did."""
        held = self._held.setdefault(address, _Held())
        cleared, youngest_s, unplaced = False, None, 0
        for event in batch.events:
            if isinstance(event, BlockStored):
                unplaced += held.store(event, batch.engine_s)
            elif isinstance(event, BlockRemoved):
                age_s = held.remove(event, batch.engine_s)
                if age_s is not None and (youngest_s is None or age_s < youngest_s):
                    youngest_s = age_s
            elif isinstance(event, AllBlocksCleared):
                held = self._held[address] = _Held()
                cleared, youngest_s = True, None
        overflowed = len(held.blocks) > self._max_blocks
        if overflowed:
            self.forget(address)
        return Applied(cleared, youngest_s, unplaced, overflowed)

    def forget(self, address: str) -> None:
        """Nothing is known of what the endpoint holds."""
        self._held.pop(address, None)


def _key(group: int | None, block_hash: BlockHash) -> EngineKey:
    return block_hash if group is None else (group, block_hash)


def _seed(chain: int, event: BlockStored, block: int) -> int:
    """`chain`, changed by what the block depends on besides tokens."""
    extra: Any = event.extra_keys[block] if event.extra_keys and block < len(event.extra_keys) else None
    if event.lora_id is None and event.lora_name is None and not extra:
        return chain
    return _digest(repr((event.lora_id, event.lora_name, extra)).encode(), chain)
