"""What engines hold in their KV caches, token by token, according to their KV events.

Engines name blocks by hashes of their own making, which differ by version, setting and process. Here a block is named
by a chain over its tokens, as the event itself carries them, so that `match` answers for any engine alike. A block is
held until every physical copy of it is removed. Blocks whose content depends on more than tokens (an adapter, an image,
a cache salt) are kept apart and match no plain prompt. (SGLang's events do not say that a request had an `extra_key`:
its blocks pass for plain ones.) Only copies in the engine's first tier count: what is left in host memory, on disk or
in a shared store has to be loaded again.

The index never claims more than was reported. It claims less where a block follows an unknown one: an engine reports
only blocks that are new to its cache, so blocks from before the first event stay unknown until they are evicted. For
models with several kinds of attention only the blocks of full attention are tracked. Where a block is one token
(SGLang's default), one in 16 is kept, and the last of each event: some 20 bytes a token instead of 300. What follows a
block that was not kept is then unknown.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import xxhash

from fairlead.engines.kv_event_messages import AllBlocksCleared, Batch, BlockHash, BlockRemoved, BlockStored

DEFAULT_MAX_BLOCKS: Final = 1_000_000  # for each endpoint; some 300 bytes each
_KEPT_OF_ONE_TOKEN: Final = 16  # one block in so many
_UNPLACED: Final = -1  # the chain of a block after an unknown one: its age is known, and it matches nothing
_FULL_ATTENTION: Final = (None, "full_attention")
_FIRST_TIER: Final = "GPU"  # what vLLM and SGLang call it, on a CPU too
_TOKEN_BYTES: Final = 4

_digest: Final = xxhash.xxh3_64_intdigest

EngineKey = BlockHash | tuple[int, BlockHash]


class _Block(msgspec.Struct, gc=False):
    chain: int
    copies: int
    stored_s: float  # when its first copy was stored, by the engine's clock


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The effect of a batch."""

    cleared: bool = False
    removed_age_s: float | None = None  # time since the youngest removed block was stored
    unplaced: int = 0  # stored blocks whose parent is unknown
    overflowed: bool = False  # more blocks than allowed: all were dropped


class _Held:
    """What one endpoint holds."""

    __slots__ = ("block_sizes", "blocks", "copies")

    def __init__(self) -> None:
        self.blocks: dict[EngineKey, _Block] = {}
        self.copies: dict[int, int] = {}  # by chain: engine blocks of this content
        self.block_sizes: set[int] = set()

    def store(self, event: BlockStored, engine_s: float) -> int:
        """Add stored blocks; returns how many of them had an unknown parent."""
        hashes, size = event.block_hashes, event.block_size
        if event.kv_cache_spec_kind not in _FULL_ATTENTION or len(event.token_ids) != size * len(hashes):
            return len(hashes)
        if event.parent_block_hash is None:
            chain = size
        else:
            parent = self.blocks.get(_key(event.group_idx, event.parent_block_hash))
            chain = _UNPLACED if parent is None else parent.chain
        self.block_sizes.add(size)
        tokens, step, every = array("I", event.token_ids).tobytes(), size * _TOKEN_BYTES, _every(size)
        is_placed, last = chain != _UNPLACED, len(hashes) - 1
        for n, block_hash in enumerate(hashes):
            if is_placed:
                chain = _digest(tokens[n * step : (n + 1) * step], _seed(chain, event, n))
            if n == last or (n + 1) % every == 0:
                self._add(_key(event.group_idx, block_hash), chain, engine_s)
        return 0 if is_placed else len(hashes)

    def _add(self, key: EngineKey, chain: int, engine_s: float) -> None:
        block = self.blocks.get(key)
        if block is not None and block.chain != chain:  # the hash function has changed: the newer event counts
            self._discard(key, block)
            block = None
        if block is None:
            self.blocks[key] = _Block(chain, 1, engine_s)
            if chain != _UNPLACED:
                self.copies[chain] = self.copies.get(chain, 0) + 1
        else:
            block.copies += 1

    def remove(self, event: BlockRemoved, engine_s: float) -> float | None:
        """Remove a copy of each block; returns the age of the youngest known one."""
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
        if block.chain == _UNPLACED:
            return
        left = self.copies[block.chain] - 1
        if left:
            self.copies[block.chain] = left
        else:
            del self.copies[block.chain]

    def match(self, tokens: bytes) -> int:
        return max((self._match(tokens, size) for size in self.block_sizes), default=0)

    def _match(self, tokens: bytes, size: int) -> int:
        copies, step, chain, held = self.copies, size * _TOKEN_BYTES, size, 0
        between = _every(size) * step  # no two kept blocks of one prompt are further apart
        for end in range(step, len(tokens) + 1, step):
            chain = _digest(tokens[end - step : end], chain)
            if chain in copies:
                held = end
            elif end - held >= between:
                break
        return held // _TOKEN_BYTES


class PreciseIndex:
    """Tokens held by each endpoint, updated by the feeds of `engines.kv_events`, for callers that have token ids."""

    def __init__(self, *, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._held: dict[str, _Held] = {}

    def match(self, token_ids: Sequence[int], address: str) -> int:
        """How many tokens of the prompt, from the first, the endpoint is known to hold in whole blocks."""
        held = self._held.get(address)
        return held.match(array("I", token_ids).tobytes()) if held is not None else 0

    def blocks(self) -> Mapping[str, int]:
        """Number of known engine blocks by endpoint."""
        return {address: len(held.blocks) for address, held in self._held.items()}

    def apply(self, address: str, batch: Batch) -> Applied:
        """Apply a batch of the endpoint's events."""
        held = self._held.setdefault(address, _Held())
        cleared, youngest_s, unplaced = False, None, 0
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                held = self._held[address] = _Held()
                cleared, youngest_s = True, None
            elif event.medium is not None and event.medium != _FIRST_TIER:
                continue
            elif isinstance(event, BlockStored):
                unplaced += held.store(event, batch.engine_s)
            else:
                age_s = held.remove(event, batch.engine_s)
                if age_s is not None and (youngest_s is None or age_s < youngest_s):
                    youngest_s = age_s
        overflowed = len(held.blocks) > self._max_blocks
        if overflowed:
            self.forget(address)
        return Applied(cleared, youngest_s, unplaced, overflowed)

    def forget(self, address: str) -> None:
        """Drop all that is known of what the endpoint holds."""
        self._held.pop(address, None)


def _key(group: int | None, block_hash: BlockHash) -> EngineKey:
    return block_hash if group is None else (group, block_hash)


def _every(size: int) -> int:
    """One block in so many is kept."""
    return _KEPT_OF_ONE_TOKEN if size == 1 else 1


def _seed(chain: int, event: BlockStored, block: int) -> int:
    """`chain`, mixed with what the block depends on besides tokens."""
    extra: Any = event.extra_keys[block] if event.extra_keys and block < len(event.extra_keys) else None
    if event.lora_id is None and event.lora_name is None and event.cache_salt is None and not extra:
        return chain
    return _digest(repr((event.lora_id, event.lora_name, event.cache_salt, extra)).encode(), chain)
