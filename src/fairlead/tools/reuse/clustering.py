"""The context index built offline: many known contexts, clustered by the paper's distance, give orders that share most.

Source: ContextPilot, equation 1 and algorithm 4 (average linkage). Up to EXACT contexts are clustered as one. More are
first split into pieces of similar contexts (those with the same most frequent blocks), because all pairs of 100,000
would take hours. For batches that are known beforehand; the request path uses `context.index`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import linkage

ALPHA: Final = 0.001  # weight of positions in the distance, in all of the paper's experiments
EXACT: Final = 4096
_PIECE: Final = 2048
_SHARED: Final = float(1 << 32)  # packs two sums: shared blocks above, differences of positions below

_Ids = tuple[int, ...]


class TreePosition(msgspec.Struct, frozen=True):
    """A context's position in the tree."""

    order: tuple[int, ...]  # positions in the original context
    path: tuple[int, ...]  # the children to take from the root; the last is its leaf


def cluster(contexts: Sequence[Sequence[Hashable]]) -> list[TreePosition]:
    """For each context (its blocks, most relevant first), the order of its blocks and its place in the tree.

    The same contexts give the same tree. Contexts with the same blocks share a leaf and its order.
    """
    numbers: dict[Hashable, int] = {}
    ids = [tuple([numbers.setdefault(block, len(numbers)) for block in context]) for context in contexts]
    leaves: dict[frozenset[int], _Ids] = {}
    for one in ids:
        leaves.setdefault(frozenset(one), tuple(dict.fromkeys(one)))
    uses = Counter(block for leaf in leaves for block in leaf)
    rank = {block: place for place, block in enumerate(sorted(uses, key=lambda block: (-uses[block], block)))}
    placed: dict[frozenset[int], tuple[_Ids, _Ids]] = {}
    first_child = 0
    for piece in _pieces(list(leaves.values()), rank):
        tree = _Tree(piece, rank)
        placed.update(zip(map(frozenset, piece), tree.place(first_child), strict=True))
        first_child += tree.children_of_root
    return [TreePosition(_positions(one, order), path) for one in ids for order, path in (placed[frozenset(one)],)]


def distances(contexts: Sequence[_Ids]) -> npt.NDArray[np.float64]:
    """Equation 1: 1 - shared / longer + ALPHA * mean difference of positions of the shared; 1 if none is shared.

    Of all pairs, in the condensed form of scipy; blocks are small ints, each once in a context.
    """
    count = len(contexts)
    lengths = np.array([len(context) for context in contexts], dtype=np.float64)
    rows_of: dict[int, list[int]] = {}
    places_of: dict[int, list[int]] = {}
    for row, context in enumerate(contexts):
        for place, block in enumerate(context):
            rows_of.setdefault(block, []).append(row)
            places_of.setdefault(block, []).append(place)
    rows = {block: np.array(of, dtype=np.intp) for block, of in rows_of.items() if len(of) > 1}
    places = {block: np.array(places_of[block], dtype=np.float64) for block in rows}
    seen = dict.fromkeys(rows, 0)
    result = np.ones(count * (count - 1) // 2)
    start = 0
    for row, context in enumerate(contexts):
        end = start + count - row - 1
        later, moved = [], []
        for place, block in enumerate(context):
            if block in seen:
                seen[block] += 1  # postings up to this row are done
                later.append(rows[block][seen[block] :])
                moved.append(np.abs(places[block][seen[block] :] - place))
        if later:
            packed = np.bincount(np.concatenate(later), np.concatenate(moved) + _SHARED, minlength=count)[row + 1 :]
            others = np.flatnonzero(packed)
            shared, differences = np.divmod(packed[others], _SHARED)
            longer = np.maximum(lengths[row], lengths[row + 1 :][others])
            result[start:end][others] = 1 - shared / longer + ALPHA * differences / shared
        start = end
    return result


def _pieces(contexts: list[_Ids], rank: Mapping[int, int]) -> Iterator[list[_Ids]]:
    if len(contexts) <= EXACT:
        yield contexts
        return
    alike = sorted(contexts, key=lambda context: sorted([rank[block] for block in context]))
    for start in range(0, len(alike), _PIECE):
        yield alike[start : start + _PIECE]


class _Tree:
    """Clusters of one piece. Nodes are numbered as scipy does: the leaves, then the merges in their order.

    The blocks that a node adds to its parent's are in the order of `rank`, so that clusters that share some of them
    without a common node may also share a prefix. A leaf's own blocks keep their received order.
    """

    def __init__(self, contexts: Sequence[_Ids], rank: Mapping[int, int]) -> None:
        self._contexts = contexts
        self._rank = rank
        count = len(contexts)
        self._blocks = [frozenset(context) for context in contexts]
        self._merged: list[tuple[int, int]] = []
        if count > 1:
            for one, other, *_ in linkage(distances(contexts), "average"):
                left, right = sorted((int(one), int(other)))
                self._blocks.append(self._blocks[left] & self._blocks[right])
                self._merged.append((left, right))
        self._top = self._children(frozenset(), [len(self._blocks) - 1]) if count else []
        self.children_of_root = len(self._top)

    def place(self, first_child: int) -> list[tuple[_Ids, _Ids]]:
        """Order (blocks) and path of each leaf; its root's children are counted from `first_child`."""
        placed: list[tuple[_Ids, _Ids]] = [((), ())] * len(self._contexts)
        waiting: list[tuple[int, _Ids, _Ids]] = [
            (node, (), (first_child + child,)) for child, node in enumerate(self._top)
        ]
        while waiting:
            node, prefix, path = waiting.pop()
            own = self._blocks[node].difference(prefix)
            if node < len(self._contexts):
                placed[node] = (*prefix, *[block for block in self._contexts[node] if block in own]), path
                continue
            order = (*prefix, *sorted(own, key=self._rank.__getitem__))
            children = self._children(self._blocks[node], list(self._merged[node - len(self._contexts)]))
            waiting += [(inner, order, (*path, child)) for child, inner in enumerate(children)]
        return placed

    def _children(self, shared: frozenset[int], nodes: list[int]) -> list[int]:
        """The nodes, with each merge that shares no more than `shared` replaced by its children."""
        children = []
        nodes.reverse()
        while nodes:
            node = nodes.pop()
            merge = node - len(self._contexts)
            if merge < 0 or len(self._blocks[node]) > len(shared):
                children.append(node)
            else:
                nodes += reversed(self._merged[merge])
        return children


def _positions(context: _Ids, order: _Ids) -> tuple[int, ...]:
    """Positions in `context` of the blocks of `order`; repeated blocks come after all of them."""
    first = {block: place for place, block in reversed(list(enumerate(context)))}
    again = [place for place, block in enumerate(context) if first[block] != place]
    return (*[first[block] for block in order], *again)
