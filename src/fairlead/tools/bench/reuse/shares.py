"""How many of the tokens of documents an engine would find in its prefix cache, by who orders them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from fairlead.context.index import ContextIndex
from fairlead.context.order import aligned
from fairlead.tools.bench.reuse.contextpilot import Contextpilot
from fairlead.tools.bench.reuse.lists import Lists
from fairlead.tools.reuse.clustering import cluster
from fairlead.tools.reuse.schedule import schedule

LIMITED: Final = 0.1  # of all tokens that are sent
_ROOT: Final = 1

Context = tuple[int, ...]


class Shares(msgspec.Struct, frozen=True):
    """Of one way to order the lists: hit share in a cache without limit, and in one of LIMITED."""

    lists: str
    way: str
    unlimited: float
    limited: float
    failures: int = 0  # requests that went on as received because the ordering failed


def all_shares(name: str, lists: Lists, rival: Contextpilot | None) -> list[Shares]:
    """Every way on the same lists. Offline, all lists are known before the first is sent."""
    contexts = lists.contexts
    ways: list[tuple[str, Callable[[], tuple[Sequence[Context], int]]]] = [
        ("raw", lambda: (contexts, 0)),
        ("Fairlead, online", lambda: (online(lists), 0)),
        ("Fairlead, offline", lambda: (offline(contexts), 0)),
    ]
    if rival is not None:
        ways += [
            ("contextpilot, online", lambda: rival.online(contexts)),
            ("contextpilot, offline", lambda: rival.offline(contexts)),
        ]
    found = []
    limit_tokens = int(LIMITED * lists.total_tokens())
    for way, order in ways:
        sent, failures = order()
        unlimited, limited = (hit_share(sent, lists.tokens, limit) for limit in (None, limit_tokens))
        found.append(Shares(name, way, unlimited, limited, failures))
    return found


def online(lists: Lists) -> list[Context]:
    """Each list aligned to those before it."""
    index = ContextIndex()
    sent = []
    for context in lists.contexts:
        orders = aligned(index, _ROOT, context, [lists.tokens[document] for document in context], (), 1)
        ordered = tuple([context[place] for place in orders[0]]) if orders else context
        index.insert(_ROOT, ordered)
        sent.append(ordered)
    return sent


def offline(contexts: Sequence[Context]) -> list[Context]:
    placed = cluster(contexts)
    ordered = [tuple([context[place] for place in of.order]) for context, of in zip(contexts, placed, strict=True)]
    return [ordered[position] for position in schedule([of.path for of in placed])]


def hit_share(sent: Iterable[Context], tokens: Sequence[int], limit_tokens: int | None) -> float:
    """Share of all tokens that a prefix cache has, by whole documents; it evicts the tail used longest ago."""
    held: OrderedDict[int, int] = OrderedDict()
    used = hits = total = 0
    for context in sent:
        prefix = _ROOT
        keys = [(prefix := hash((prefix, document)), tokens[document]) for document in context]
        hitting = True
        for key, size in keys:
            total += size
            hitting = hitting and key in held
            hits += size if hitting else 0
        for key, size in reversed(keys):
            used += size if key not in held else 0
            held[key] = size
            held.move_to_end(key)
        while limit_tokens is not None and used > limit_tokens:
            used -= held.popitem(last=False)[1]
    return hits / max(1, total)
