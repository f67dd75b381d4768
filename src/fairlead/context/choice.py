"""Which order each group of a text's blocks is sent in: as received, or as it was sent before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.context.census import Census
from fairlead.context.draft import Draft
from fairlead.context.forms import MOST_FORMS, Sent
from fairlead.context.index import ContextIndex
from fairlead.context.order import Permutation, aligned


class DocumentNames:
    """How notes on the order name a text's documents; looked up when an order is changed."""

    __slots__ = ("_census", "_names", "made")

    def __init__(self, made: Draft, census: Callable[[], Census]) -> None:
        self.made = made
        self._census = census
        self._names: dict[int, Sequence[bytes] | None] = {}

    def known(self, group: int) -> bool:
        if group not in self._names:
            self._names[group] = self.made.names(group, self._census())
        return self._names[group] is not None

    def __call__(self, group: int) -> Sequence[bytes]:
        return (self._names[group] if self.known(group) else ()) or ()


class Orders:
    """The orders in which a text's blocks may be sent, of those that the index knows.

    `stay` says whether something in the request means blocks by their positions; it is asked when an order changes.
    """

    __slots__ = ("_stay", "index", "names", "reorders")

    def __init__(self, index: ContextIndex, names: DocumentNames, stay: Callable[[], bool], *, reorders: bool) -> None:
        self.index = index
        self.names = names
        self.reorders = reorders
        self._stay = stay

    def aligned(self, group: int, root: int) -> list[Permutation]:
        """Orders of a group's blocks that were sent before, and may be sent: all blocks can be named, and nothing in
        the request means them by their positions.
        """
        made = self.names.made
        ids = made.ids[group]
        sizes = [block.end - block.start for block in made.groups[group].blocks]
        orders = aligned(self.index, root, ids, sizes, made.references[group], MOST_FORMS)
        received = tuple(range(len(ids)))
        moves = any(order != received for order in orders)
        return orders if not moves or (self.names.known(group) and not self._stay()) else []


class Choice:
    """Chooses and records the order of each group of a text.

    The first group that can be aligned gets its `number`-th alternative order (0: as received); groups after it, and
    all if `number` is None, get the order that shares most.
    """

    __slots__ = ("_number", "_orders", "aligned_is_best", "known_bytes", "orders", "others", "sent")

    def __init__(self, orders: Orders, number: int | None) -> None:
        self.orders: dict[int, Permutation] = {}  # by group
        self.sent: list[Sent] = []
        self.known_bytes = 0
        self.others = 0  # alternative orders of the group at which the forms differ
        self.aligned_is_best = False
        self._orders = orders
        self._number = number

    def __call__(self, group: int, root: int) -> Permutation:
        made = self._orders.names.made
        ids = made.ids[group]
        received = order = tuple(range(len(ids)))
        if not self._orders.reorders:
            return received
        found = self._orders.aligned(group, root)
        others = [one for one in found if one != received]
        if self._number is None or self.others:
            order = found[0] if found else received
        elif others:
            self.others = len(others)
            self.aligned_is_best = found[0] != received
            if self._number:
                order = others[self._number - 1]
        self.orders[group] = order
        sent = Sent(root, tuple([ids[place] for place in order]))
        blocks = made.groups[group].blocks
        known = self._orders.index.known(root, sent.ids)
        self.known_bytes += sum(blocks[place].end - blocks[place].start for place in order[:known])
        self.sent.append(sent)
        return order
