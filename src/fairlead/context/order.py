"""The order in which a group's blocks are sent, so that they begin with blocks sent before.

Source: ContextPilot, algorithm 2: the matched prefix, then the remaining blocks in their original order.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.context.index import ContextIndex

Permutation = tuple[int, ...]  # positions in the group as received


def aligned(
    index: ContextIndex, root: int, ids: Sequence[int], sizes: Sequence[int], fixed: Sequence[int], most: int
) -> list[Permutation]:
    """Orders of the blocks `ids` that begin with what was sent after `root`, the one that shares most first.

    Blocks at the positions `fixed` are references: they come last if others move, so that they point backwards. One of
    the orders may be the one received.
    """
    count = len(ids)
    free = [place for place in range(count) if place not in fixed]
    if len(free) < 2:
        return []
    matches = index.search(root, [ids[place] for place in free], [sizes[place] for place in free], most)
    orders: list[Permutation] = []
    for match in matches:
        first = [free[place] for place in match.path]
        if first != free[: len(first)]:
            orders.append((*first, *[place for place in free if place not in first], *fixed))
        else:
            orders.append(tuple(range(count)))
    return orders
