"""The context index: which orders of context blocks have been sent, as a bounded set of their prefixes.

A prefix of an emitted order is one 64-bit hash, made from the hash of the prefix before it and its last block; the
prefix without blocks is the hash of all that the model reads before them. So the tree of the paper (section 4.1) needs
no nodes: whether a prefix can be extended by a block is one look into a table, however many children the prefix has,
and only what was emitted after the very same text can ever be matched.

It says what was sent, not what an engine still holds: that is the prefix index's knowledge (`core.prefix_index`), and
whoever asked it tells this index which orders nobody holds any more.
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
    """Emitted orders, the least recently used dropped first. Every method is O(blocks) but for `search`."""

    def __init__(self, *, max_prefixes: int = DEFAULT_MAX_PREFIXES) -> None:
        self.shard_prefixes = max(1, max_prefixes // _SHARDS)
        self._shards: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in range(_SHARDS))

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def search(self, root: int, blocks: Sequence[int], sizes: Sequence[int], most: int = 1) -> list[Match]:
        """The `most` ways to begin with blocks in an order sent after `root`, those of the largest size first.

        Among equal ones the path whose blocks moved least comes first (the second term of the paper's equation 1).
        Paths end where nothing extends them, so none is the beginning of another. In place of the paper's greedy
        descent (algorithm 1) all such paths are followed, up to a fixed number of prefixes.
        """
        shards = self._shards
        # The last that is found extended is followed first: that which is the nearest to the request.
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
        """An order was sent after `root`: it is now the most recently used."""
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
        """Nobody holds anything of this order any more: drop its prefixes, and so all that went on from them."""
        prefix = root
        for block in blocks:
            prefix = hash((prefix, block))
            self._shards[prefix % _SHARDS].pop(prefix, None)


def _largest_then_nearest(match: Match) -> tuple[int, int]:
    return -match.size, sum(abs(place - position) for place, position in enumerate(match.path))
