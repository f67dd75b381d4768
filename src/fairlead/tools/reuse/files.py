"""Contexts and offline indexes in files, for those who order batches themselves.

Contexts are JSON lines: `{"id": "q1", "blocks": ["d7", "d2"]}`, or only the list of blocks. An index is one JSON file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from fairlead.context.index import ContextIndex
from fairlead.context.order import aligned
from fairlead.errors import UserError

_ROOT = 0


class Context(msgspec.Struct, frozen=True):
    """Blocks that one request needs, the most relevant first."""

    id: str | int
    blocks: tuple[str | int, ...]


class OrderedContext(msgspec.Struct, frozen=True):
    """A context in the index: its blocks in the order to send them, and its place in the tree."""

    id: str | int
    blocks: tuple[str | int, ...]
    path: tuple[int, ...]


class OfflineIndex(msgspec.Struct, frozen=True):
    """What `fairlead reuse build` writes."""

    contexts: tuple[OrderedContext, ...]
    schedule: tuple[int, ...]  # positions in `contexts`, in the order of execution

    def query(self, blocks: Sequence[str | int]) -> tuple[tuple[str | int, ...], int]:
        """`blocks` in the order that shares most with what the index has, and how many of them it shares."""
        numbers: dict[str | int, int] = {}
        index = ContextIndex(max_prefixes=2 * sum(len(context.blocks) for context in self.contexts) + 64)
        for context in self.contexts:
            index.insert(_ROOT, [numbers.setdefault(block, len(numbers)) for block in context.blocks])
        ids = [numbers.setdefault(block, len(numbers)) for block in blocks]
        orders = aligned(index, _ROOT, ids, [1] * len(ids), (), 1)
        order = orders[0] if orders else tuple(range(len(ids)))
        return tuple([blocks[place] for place in order]), index.known(_ROOT, [ids[place] for place in order])


def read_contexts(path: Path) -> list[Context]:
    """Raises UserError for a file that cannot be read, with the line that is wrong."""
    contexts: list[Context] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); pass a file of JSON lines") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=Context | list[str | int])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            example = '{"id": "q1", "blocks": ["d7", "d2"]}'
            raise UserError(f"{path}:{number}: {error}; write a line like {example}") from None
        contexts.append(read if isinstance(read, Context) else Context(number, tuple(read)))
    if not contexts:
        raise UserError(f"{path}: has no contexts; write one on each line")
    return contexts


def read_index(path: Path) -> OfflineIndex:
    """Raises UserError for a file that `fairlead reuse build` did not write."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=OfflineIndex)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); make it with fairlead reuse build") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not an index ({error}); make one with fairlead reuse build") from None


def build_index(contexts: Sequence[Context]) -> OfflineIndex:
    """Needs numpy and scipy."""
    from fairlead.tools.reuse.clustering import cluster
    from fairlead.tools.reuse.schedule import schedule

    placed = cluster([context.blocks for context in contexts])
    return OfflineIndex(
        tuple([
            OrderedContext(context.id, tuple([context.blocks[place] for place in of.order]), of.path)
            for context, of in zip(contexts, placed, strict=True)
        ]),
        tuple(schedule([of.path for of in placed])),
    )  # fmt: skip


def shared_blocks(sent: Iterable[Sequence[str | int]]) -> tuple[int, int]:
    """For contexts sent in this order: how many blocks an unlimited prefix cache would have, and how many there are."""
    index = ContextIndex(max_prefixes=1 << 40)
    shared = total = 0
    numbers: dict[str | int, int] = {}
    for blocks in sent:
        ids = [numbers.setdefault(block, len(numbers)) for block in blocks]
        shared += index.known(_ROOT, ids)
        total += len(ids)
        index.insert(_ROOT, ids)
    return shared, total
