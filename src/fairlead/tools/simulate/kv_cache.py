"""KV blocks of one simulated engine: reference counts, and a prefix cache that evicts the least recently used.

A block named by a hash can be shared and stays cached after its last user; any other block is private and becomes free.
Blocks have no number here: only their count and their content matter to time, which keeps a million requests cheap.
A user of a block also uses all blocks before it, and releases them after it. So in a chain, cached blocks come first,
referenced ones before the others, and counts of users never rise. Bisection and slices rely on that. Two requests that
compute the same content at the same time end up sharing one block (as in SGLang's tree; vLLM keeps both copies until
they are evicted).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from typing import Final

_all: Final = partial(deque[None], maxlen=0)  # runs an iterable to its end, at C's speed


class BlockPool:
    """`capacity` blocks; each is free, cached without a user, private, or shared by the requests that reference it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.private = 0
        self._references: dict[int, int] = {}  # hash -> users, always at least one
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, no user; the first is evicted next

    @property
    def used(self) -> int:
        """Blocks that a request holds. A cached block without a user counts as free, as in vLLM's usage gauge."""
        return len(self._references) + self.private

    @property
    def available(self) -> int:
        return self.capacity - self.used

    @property
    def cached(self) -> int:
        """Blocks that a new prompt could find, held by a request or not."""
        return len(self._references) + len(self._idle)

    def match(self, hashes: Sequence[int], limit: int) -> int:
        """How many blocks from the start of `hashes`, at most `limit`, are cached."""
        references, idle = self._references, self._idle
        low, high = 0, min(limit, len(hashes))
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] in references or hashes[middle] in idle:
                low = middle + 1
            else:
                high = middle
        return low

    def acquire(self, hashes: Sequence[int], matched: int, new: int) -> bool:
        """Reference the first `matched` of `hashes` and take `new` private blocks, or change nothing without room."""
        references, idle = self._references, self._idle
        shared = bisect_left(hashes, True, hi=matched, key=lambda name: name not in references)
        if matched - shared + new > self.available:
            return False
        for name in hashes[:shared]:
            references[name] += 1
        revived = hashes[shared:matched]
        _all(map(idle.__delitem__, revived))
        references.update(dict.fromkeys(revived, 1))
        self.private += new
        self._evict_beyond_capacity()
        return True

    def take_one(self) -> bool:
        """One more private block for a growing answer; False when every block has a user."""
        if self.available == 0:
            return False
        self.private += 1
        self._evict_beyond_capacity()
        return True

    def store(self, hashes: Sequence[int], start: int, end: int) -> None:
        """A request's private blocks at positions `start` to `end` are full: name them, so that others find them."""
        references, idle, names = self._references, self._idle, hashes[start:end]
        self.private -= end - start
        if not idle.keys().isdisjoint(names):
            for name in names:
                idle.pop(name, None)
        if references.keys().isdisjoint(names):
            references.update(dict.fromkeys(names, 1))
        else:
            for name in names:
                references[name] = references.get(name, 0) + 1

    def adopt(self, hashes: Sequence[int]) -> int:
        """Cache these blocks, which came from another engine; returns how many were new, none without room."""
        known = self.match(hashes, len(hashes))
        if not self.acquire(hashes, known, len(hashes) - known):
            return 0
        self.store(hashes, known, len(hashes))
        self.release(hashes, len(hashes), 0)
        return len(hashes) - known

    def release(self, hashes: Sequence[int], named: int, private: int) -> None:
        """Give back a request's blocks: the first `named` of `hashes`, which stay cached, and its private ones.

        The last block goes first, so that a chain is evicted from its end.
        """
        self.private -= private
        if not named:
            return
        references, idle = self._references, self._idle
        shared = bisect_left(hashes, True, hi=named, key=lambda name: references[name] == 1)
        last = hashes[shared:named]
        _all(map(references.__delitem__, last))
        idle.update(dict.fromkeys(reversed(last)))
        for name in hashes[:shared]:
            references[name] -= 1

    def clear_cache(self) -> None:
        """Drop every block without a user, as a restart would."""
        self._idle.clear()

    def _evict_beyond_capacity(self) -> None:
        if self._idle:
            for _ in range(self.used + len(self._idle) - self.capacity):
                self._idle.popitem(last=False)
