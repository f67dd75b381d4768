"""The context index: which orders of context blocks have been sent, as a bounded set of their prefixes.

A prefix of an emitted order is one 64-bit hash, made from the hash of the prefix before it and its last block; the
prefix without blocks is the hash of all that the model reads before them. So the tree of the paper (section 4.1) needs
no nodes: whether a prefix can be extended by a block is one table lookup, however many children the prefix has, and a
match is always preceded by exactly the same text. It records what was sent, not what an engine still holds: the prefix
index (`core.prefix_index`) knows that, and its caller drops from this index the orders that no engine holds any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

DEFAULT_MAX_PREFIXES: Final = 250_000  # about 150 bytes each
_SHARDS: Final = 64  # growing a table copies it: many small ones, so that no request waits for a large one
_MOST_VISITED: Final = 64  # prefixes looked at in one search


class Match(msgspec.Struct, frozen=True, gc=False):
    """Blocks of a request in an order that was sent before."""

    path: tuple[int, ...]  # positions in the request's list
    size: int  # of these blocks, in the unit that the search was given


class ContextIndex:
    """Emitted orders; the least recently used are dropped first. Every method except `search` is O(blocks)."""

    def __init__(self, *, max_prefixes: int = DEFAULT_MAX_PREFIXES) -> None:
        self.shard_prefixes = max(1, max_prefixes // _SHARDS)
        self._shards: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in range(_SHARDS))

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def search(self, root: int, blocks: Sequence[int], sizes: Sequence[int], most: int = 1) -> list[Match]:
        """Up to `most` orders sent after `root` that these blocks can begin with, the largest first.

        Among equals, the path whose blocks move least comes first (the second term of the paper's equation 1). Paths
        are maximal, so none is a prefix of another. Instead of the paper's greedy descent (algorithm 1), all such paths
        are followed, up to a fixed number of prefixes.
        """
        shards = self._shards
        # The extension found last is followed first: it is nearest to the request's own order.
        places = list(enumerate(blocks))[::-1]
        total = sum(sizes)
        found: list[Match] = []
        waiting: list[tuple[int, tuple[int, ...], int]] = [(root, (), 0)]
        visited = 0
        while waiting and visited < _MOST_VISITED:
            prefix, path, size = waiting.pop()
            visited += 1
            extended = False
            for position, block in places:
                key = hash((prefix, block))
                if key in shards[key % _SHARDS] and position not in path:
                    extended = True
                    waiting.append((key, (*path, position), size + sizes[position]))
            if not extended and path:
                found.append(Match(path, size))
                if size == total and len(found) >= most:
                    break
        found.sort(key=_largest_then_nearest)
        return found[:most]

    def insert(self, root: int, blocks: Sequence[int]) -> None:
        """Record that an order was sent after `root`; it becomes the most recently used."""
        prefix = root
        keys = [prefix := hash((prefix, block)) for block in blocks]
        for key in reversed(keys):  # the head is used last, and so dropped last
            shard = self._shards[key % _SHARDS]
            if key in shard:
                shard.move_to_end(key)
            else:
                if len(shard) >= self.shard_prefixes:
                    shard.popitem(last=False)
                shard[key] = None

    def known(self, root: int, blocks: Sequence[int]) -> int:
        """How many of the first blocks were sent in this order after `root`."""
        prefix, shards = root, self._shards
        for number, block in enumerate(blocks):
            prefix = hash((prefix, block))
            if prefix not in shards[prefix % _SHARDS]:
                return number
        return len(blocks)

    def drop(self, root: int, blocks: Sequence[int]) -> None:
        """No engine holds this order any more: drop its prefixes, and with them every order that continues it."""
        prefix = root
        for block in blocks:
            prefix = hash((prefix, block))
            self._shards[prefix % _SHARDS].pop(prefix, None)


def _largest_then_nearest(match: Match) -> tuple[int, int]:
    return -match.size, sum(abs(place - position) for place, position in enumerate(match.path))
