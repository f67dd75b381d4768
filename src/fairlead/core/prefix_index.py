"""The prefix index: which endpoint holds how many blocks of a prompt's prefix, as far as routing history shows.

Prompts are kept as runs: a run is a piece of a hash chain (`core.prefix`), eight bytes a block, which endpoints share.
What one endpoint holds of a run is a hold: the run's blocks up to `end`, all last used by the same request. A prompt
that leaves a run in its middle goes on in another run, found by the hash of its first block. As a block's hash stands
for all before it, one comparison tells that a whole run matches, and a bisection where a prompt leaves it: the time of
a lookup grows with the runs on its path and the endpoints that hold them, not with the prompt.

An endpoint's holds stand in order of use, a prompt's tail before its head, so evicting the oldest never leaves a hole:
this is least-recently-used by block, as engines evict, with the bookkeeping of runs. What may be much at once, such as
all that a restarted engine held, is given back a little at each insert.

Engines count their caches in tokens, and a block of UUIDs has three times those of a block of prose: an endpoint's
capacity follows from the average of the blocks that it holds.

The garbage collector does not see runs and holds (`core.prefix_holds`), so an index takes itself apart when it goes. It
is a guess: what an engine evicted out of turn, or never cached, it does not know.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from sys import getsizeof
from typing import Final, NamedTuple

from fairlead.core.prefix import BLOCK_TOKENS
from fairlead.core.prefix_holds import BLOCK_BYTES, Hold, Owner, Run, hash_at

DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
DEFAULT_BLOCKS: Final = 4096  # of 512 bytes: some 500,000 tokens, the KV cache of an 8B model on one 80 GB card
DEFAULT_TTL_S: Final = 1200.0

# Bytes of the small objects, as allocated (in steps of 16). Containers are asked for their size instead.
_INT: Final = 48
_RUN_BYTES: Final = 48 + 2 * _INT  # the run, its depth, the key that finds it
_OWNER_BYTES: Final = 432  # with its key, its numbers and its place in the order
_HOLD_BYTES: Final = 64 + _INT + 32  # the hold, its end, its time

_SHARDS: Final = 256  # growing a table copies it: many small ones, so that no request waits for a large one
_GIVEN_BACK_AT_ONCE: Final = 8  # holds that count no more, at each insert


class HeldBefore(NamedTuple):
    """A part of a prompt that its endpoint had already, all last used at one time."""

    end: int  # in blocks of the chain
    used_s: float


class PrefixIndex:
    """Blocks held by endpoint. `now_s` is the caller's clock, and must not run backwards by much."""

    def __init__(
        self,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        default_blocks: int = DEFAULT_BLOCKS,
        ttl_s: float = DEFAULT_TTL_S,
    ) -> None:
        self._max_bytes = max_bytes
        self._default_blocks = default_blocks
        self._ttl_s = ttl_s
        self._runs: tuple[dict[int, Run], ...] = tuple({} for _ in range(_SHARDS))  # by the hash of their first block
        self._owners: dict[str, Owner] = {}
        self._forgotten: list[Owner] = []
        # A heap of owners by the age of their oldest hold. Ages are of when they were written, so lower bounds.
        self._by_age: list[tuple[float, str, Owner]] = []
        self.used_bytes = sum(map(getsizeof, self._runs))  # of memory; at most `max_bytes` between calls

    def __del__(self) -> None:
        for owner in (*self._owners.values(), *self._forgotten):
            while owner.oldest is not None:
                hold = owner.oldest
                owner.unlink(hold)
                hold.run.holds.pop(owner.address, None)

    # ---- lookups ------------------------------------------------------------------------------------------------

    def match(self, chain: Sequence[int], now_s: float) -> Mapping[str, int]:
        """How many blocks of `chain`, from its first, each endpoint holds; endpoints that hold none are absent."""
        found: dict[str, int] = {}
        used_after_s = now_s - self._ttl_s
        for run, end in self._path(chain):
            for address, hold in run.holds.items():
                if hold.used_s > used_after_s and hold.used_s >= hold.owner.evicted_s:
                    held = hold.end
                    found[address] = held if held < end else end
        return found

    def blocks(self, address: str) -> int:
        """Blocks kept for one endpoint, of all prompts; among them some that count no more and go soon."""
        owner = self._owners.get(address)
        return 0 if owner is None else owner.blocks

    def tokens(self, address: str) -> int:
        """About as many as `blocks` have."""
        owner = self._owners.get(address)
        return 0 if owner is None else int(owner.blocks * owner.block_tokens)

    # ---- updates ------------------------------------------------------------------------------------------------

    def insert(
        self, chain: Sequence[int], address: str, now_s: float, block_tokens: float = BLOCK_TOKENS
    ) -> list[HeldBefore]:
        """The endpoint gets a prompt with this chain, and will hold it as the most recently used.

        `block_tokens` is what one of its blocks has on average. Returns what it held of the chain before.
        """
        if not chain:
            return []
        owner = self._owners.get(address) or self._own(address)
        path, before = self._extended(chain), owner.blocks
        held_before = self._held_before(path, owner, now_s)
        # The deepest first: the head is used last, and so evicted last.
        for run, end in reversed(path):
            self._use(run, end, owner, now_s)
        if owner.blocks > before:
            owner.grown(owner.blocks - before, max(block_tokens, 1.0))
        self._evict_to_capacity(owner)
        self._give_back(owner, now_s)
        if not owner.is_by_age and owner.oldest is not None:
            heappush(self._by_age, (owner.oldest.used_s, address, owner))
            owner.is_by_age = True
        while self.used_bytes > self._max_bytes and (oldest := self._oldest_of_all()) is not None:
            self._drop(oldest)
        return held_before

    def roll_back(self, chain: Sequence[int], address: str, held_blocks: int, inserted_s: float) -> None:
        """The prompt inserted at `inserted_s` was not computed there; `held_blocks` of it had been held before.

        What another prompt has used since stays, as that prompt was computed.
        """
        for run, end in reversed(self._path(chain)):
            if end <= held_blocks:
                return
            hold = run.holds.get(address)
            if hold is None or hold.used_s != inserted_s:
                continue
            if run.depth >= held_blocks:
                self._drop(hold)
            elif (before := hold.end) > held_blocks:
                hold.owner.blocks -= before - held_blocks
                hold.end = held_blocks
                self._trim(run, before)

    def forget(self, address: str) -> None:
        """The engine there restarted, cleared its cache or is gone: it holds nothing. Its capacity stays."""
        owner = self._owners.get(address)
        if owner is None or owner.oldest is None:
            return
        owner.evicted_s = inf
        self._forgotten.append(owner)
        self._by_age = [entry for entry in self._by_age if entry[2] is not owner]
        heapify(self._by_age)
        fresh = self._owners[address] = Owner(address, owner.capacity, owner.capacity_tokens)
        fresh.block_tokens = owner.block_tokens
        if owner.newest is not None:
            fresh.forgotten_s = owner.newest.used_s

    def remove(self, address: str) -> None:
        """The engine there has left the pool: as `forget`, and its capacity goes too."""
        self.forget(address)
        if self._owners.pop(address, None) is not None:
            self.used_bytes -= _OWNER_BYTES

    def evicted_before(self, address: str, used_s: float) -> None:
        """The engine there was seen to evict what had last been used at `used_s`: what is older went before it."""
        owner = self._owners.get(address)
        if owner is not None and used_s > owner.evicted_s:
            owner.evicted_s = used_s

    def has_kept(self, address: str, used_s: float, now_s: float) -> bool:
        """Whether the endpoint may still hold what it last used at `used_s`."""
        owner = self._owners.get(address)
        if owner is None:
            return False
        return used_s >= owner.evicted_s and used_s > owner.forgotten_s and used_s > now_s - self._ttl_s

    def has_forgotten(self, address: str, used_s: float) -> bool:
        """Whether the engine there restarted, or cleared its cache, after it used something at `used_s`."""
        owner = self._owners.get(address)
        return owner is not None and used_s <= owner.forgotten_s

    def set_capacity(self, address: str, blocks: int) -> None:
        """What the endpoint's KV cache can hold, in blocks of `core.prefix`; less than now evicts at once."""
        owner = self._owners.get(address) or self._own(address)
        owner.capacity, owner.capacity_tokens = max(0, blocks), None
        self._evict_to_capacity(owner)

    def set_capacity_tokens(self, address: str, tokens: int) -> None:
        """As `set_capacity`, in tokens: how many blocks that is follows from what is held."""
        owner = self._owners.get(address) or self._own(address)
        owner.capacity_tokens = max(0, tokens)
        owner.fit_capacity()
        self._evict_to_capacity(owner)

    def _held_before(self, path: Sequence[tuple[Run, int]], owner: Owner, now_s: float) -> list[HeldBefore]:
        """What `match` counts of the path for one endpoint, up to the first block that it does not."""
        held: list[HeldBefore] = []
        used_after_s, reached = now_s - self._ttl_s, 0
        for run, end in path:
            hold = run.holds.get(owner.address)
            if hold is None or hold.owner is not owner or run.depth > reached:
                break
            if hold.used_s <= used_after_s or hold.used_s < owner.evicted_s:
                break
            reached = min(hold.end, end)
            held.append(HeldBefore(reached, hold.used_s))
        return held

    # ---- runs ---------------------------------------------------------------------------------------------------

    def _path(self, chain: Sequence[int]) -> list[tuple[Run, int]]:
        """The runs that `chain` follows, each with the blocks of `chain` known up to where it leaves the run."""
        path: list[tuple[Run, int]] = []
        runs, length, depth = self._runs, len(chain), 0
        while depth < length:
            block = chain[depth]
            run = runs[block % _SHARDS].get(block)
            if run is None or run.depth != depth:  # another depth: two prompts with the same 64 bits
                break
            blocks = run.blocks
            size = len(blocks) // BLOCK_BYTES
            if depth + size <= length and hash_at(blocks, len(blocks) - BLOCK_BYTES)[0] == chain[depth + size - 1]:
                depth += size
            else:
                same, other = 0, min(size, length - depth)  # positions in the run; the first is the same
                if other == length - depth and hash_at(blocks, (other - 1) * BLOCK_BYTES)[0] == chain[-1]:
                    same = other - 1
                while other - same > 1:
                    middle = (same + other) // 2
                    if hash_at(blocks, middle * BLOCK_BYTES)[0] == chain[depth + middle]:
                        same = middle
                    else:
                        other = middle
                depth += same + 1
            path.append((run, depth))
        return path

    def _extended(self, chain: Sequence[int]) -> list[tuple[Run, int]]:
        """The path of `chain`, after what was missing of it is added: to the last run's end, or as a new run."""
        path = self._path(chain)
        run, end = path[-1] if path else (None, 0)
        if end == len(chain):
            return path
        new = bytearray(array("Q", chain[end:]))
        if run is not None and end == run.end:
            before = getsizeof(run.blocks)
            run.blocks.extend(new)
            self.used_bytes += getsizeof(run.blocks) - before
            path[-1] = (run, len(chain))
        elif (run := self._new_run(end, new)) is not None:
            path.append((run, len(chain)))
        return path

    def _new_run(self, depth: int, blocks: bytearray) -> Run | None:
        run = Run(depth, blocks, {})
        key = run.key
        shard = self._runs[key % _SHARDS]
        if key in shard:  # at another depth: see `_path`
            return None
        before = getsizeof(shard)
        shard[key] = run
        self.used_bytes += getsizeof(shard) - before + _RUN_BYTES + getsizeof(blocks) + getsizeof(run.holds)
        return run

    def _split(self, run: Run, depth: int) -> None:
        """Make a run of its own of the blocks from `depth` on, with the holds that reach them."""
        at = depth - run.depth
        tail = self._new_run(depth, run.blocks[at * BLOCK_BYTES :])
        if tail is None:
            return
        self._cut(run, at)
        for hold in run.holds.values():
            if hold.end > depth:
                self._hold(tail, hold.end, hold.owner, hold.used_s, newer=hold)
                hold.end = depth

    def _cut(self, run: Run, size: int) -> None:
        before = getsizeof(run.blocks)
        del run.blocks[size * BLOCK_BYTES :]
        self.used_bytes += getsizeof(run.blocks) - before

    # ---- holds --------------------------------------------------------------------------------------------------

    def _use(self, run: Run, end: int, owner: Owner, now_s: float) -> None:
        hold = run.holds.get(owner.address)
        if hold is not None and hold.owner is not owner:
            self._take_over(hold, end, owner, now_s)
            return
        if hold is None:
            self._hold(run, end, owner, now_s, newer=None)
            owner.blocks += end - run.depth
            return
        if hold.end > end:
            self._split(run, end)  # the rest was not used now, and ages
        else:
            owner.blocks += end - hold.end
            hold.end = end
        hold.used_s = now_s
        if hold.newer is not None:
            owner.unlink(hold)
            owner.link(hold, None)

    def _take_over(self, hold: Hold, end: int, owner: Owner, now_s: float) -> None:
        """The hold is of before the engine restarted: it becomes what the restarted one holds."""
        before = hold.end
        hold.owner.unlink(hold)
        hold.owner.blocks -= hold.held
        hold.owner, hold.end, hold.used_s = owner, end, now_s
        owner.link(hold, None)
        owner.blocks += hold.held
        if before > end:
            self._trim(hold.run, before)

    def _hold(self, run: Run, end: int, owner: Owner, used_s: float, newer: Hold | None) -> None:
        hold = Hold(run, owner, end, used_s)
        owner.link(hold, newer)
        before = getsizeof(run.holds)
        run.holds[owner.address] = hold
        self.used_bytes += getsizeof(run.holds) - before + _HOLD_BYTES

    def _drop(self, hold: Hold) -> None:
        run, owner = hold.run, hold.owner
        owner.unlink(hold)
        owner.blocks -= hold.held
        del run.holds[owner.address]
        self.used_bytes -= _HOLD_BYTES
        if run.holds:
            self._trim(run, hold.end)
        else:
            key = run.key
            del self._runs[key % _SHARDS][key]
            self.used_bytes -= _RUN_BYTES + getsizeof(run.blocks) + getsizeof(run.holds)

    def _trim(self, run: Run, freed_end: int) -> None:
        """Somebody no longer holds `run` up to `freed_end`: keep what anybody else holds."""
        if freed_end == run.end:
            self._cut(run, max(hold.end for hold in run.holds.values()) - run.depth)

    # ---- eviction -----------------------------------------------------------------------------------------------

    def _own(self, address: str) -> Owner:
        owner = self._owners[address] = Owner(address, self._default_blocks, self._default_blocks * BLOCK_TOKENS)
        self.used_bytes += _OWNER_BYTES
        return owner

    def _evict_to_capacity(self, owner: Owner) -> None:
        while owner.blocks > owner.capacity and (hold := owner.oldest) is not None:
            excess = owner.blocks - owner.capacity
            if excess >= hold.held:
                self._drop(hold)
            else:
                end = hold.end
                hold.end -= excess
                owner.blocks -= excess
                self._trim(hold.run, end)

    def _give_back(self, owner: Owner, now_s: float) -> None:
        """Drop a few holds that count no more: all of forgotten owners, and the outdated ones of `owner`."""
        for _ in range(_GIVEN_BACK_AT_ONCE):
            if self._forgotten:
                hold = self._oldest_forgotten()
            else:
                hold = owner.oldest
                if hold is not None and hold.used_s > now_s - self._ttl_s and hold.used_s >= owner.evicted_s:
                    return
            if hold is not None:
                self._drop(hold)

    def _oldest_forgotten(self) -> Hold | None:
        hold = self._forgotten[-1].oldest
        if hold is None:
            self._forgotten.pop()
        return hold

    def _oldest_of_all(self) -> Hold | None:
        """The hold to drop when memory is short: a forgotten one, else the least recently used of all endpoints."""
        while self._forgotten:
            if (hold := self._oldest_forgotten()) is not None:
                return hold
        while self._by_age:
            age_s, address, owner = self._by_age[0]
            hold = owner.oldest
            if hold is None:
                heappop(self._by_age)
                owner.is_by_age = False
            elif hold.used_s > age_s:
                heapreplace(self._by_age, (hold.used_s, address, owner))
            else:
                return hold
        return None
