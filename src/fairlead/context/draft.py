"""One text on its way to the model: its blocks found, what was read before replaced by references, its order open.

Settled by `arranged`, which takes the blocks' order. Nothing here remembers anything: see `context.reuse`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from fairlead.context.annotate import order_annotation
from fairlead.context.blocks import Format, Group, find_groups
from fairlead.context.dedup import LEAST_IN_PARTS_BYTES, Seen, repeated_blocks, without_repeated_parts
from fairlead.context.escaped import Piece, applied
from fairlead.context.order import Order

MOST_GROUPS: Final = 64  # of a text; one with more is prose that mentions tags, and stays as it is


class Settings(msgspec.Struct, frozen=True):
    """What is done to a request's blocks, and in which formats they are looked for."""

    order: bool
    dedup: bool
    formats: tuple[Format, ...]


class Draft(msgspec.Struct, frozen=True):
    """A text whose blocks are known. By group and block, in the order received: pieces and a hash of what they say."""

    text: bytes
    groups: tuple[Group, ...] = ()
    rendered: tuple[tuple[tuple[Piece, ...], ...], ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()
    references: tuple[tuple[int, ...], ...] = ()  # positions of the blocks that are references
    bodies: tuple[tuple[bytes, bytes], ...] = ()  # first read here, by digest, with their names
    parts: tuple[tuple[bytes, int], ...] = ()
    whole: tuple[Piece, ...] = ()  # of a text without groups
    dropped_bytes: int = 0  # replaced by references, less these


Choose = Callable[[int, int], Order]  # group, hash of all that the model reads before it


def draft(text: bytes, role: str, settings: Settings, seen: Seen, text_place: int) -> Draft:
    """Find the blocks of a text. What it has that was not read before is put into `seen`."""
    groups = find_groups(text, settings.formats)
    if len(groups) > MOST_GROUPS:
        return Draft(text)
    bodies: dict[bytes, bytes] = {}
    own_parts: dict[bytes, int] = {}
    rendered: list[tuple[tuple[Piece, ...], ...]] = []
    references: list[tuple[int, ...]] = []
    whole: tuple[Piece, ...] = ()
    for group in groups:
        replaced = repeated_blocks(text, group, seen, bodies) if settings.dedup else {}
        references.append(tuple(replaced))
        blocks: list[tuple[Piece, ...]] = []
        for place, block in enumerate(group.blocks):
            body: list[Piece] = [(block.body_start, block.body_end)]
            if place in replaced:
                body = [replaced[place]]
            elif settings.dedup and group.format != "json":
                body = without_repeated_parts(text, block.body_start, block.body_end, seen, own_parts, text_place)
            blocks.append(_joined((block.start, block.body_start), *body, (block.body_end, block.end)))
        rendered.append(tuple(blocks))
    is_plain = not groups and len(text) >= LEAST_IN_PARTS_BYTES and not text.lstrip().startswith((b"{", b"["))
    if is_plain and settings.dedup and role == "tool":
        whole = _joined(*without_repeated_parts(text, 0, len(text), seen, own_parts, text_place))
    for digest, place in own_parts.items():
        seen.parts.setdefault(digest, place)
    ids = tuple([tuple([xxh3_64_intdigest(applied(text, block)) for block in blocks]) for blocks in rendered])
    return Draft(
        text=text,
        groups=tuple(groups),
        rendered=tuple(rendered),
        ids=ids,
        references=tuple(references),
        bodies=tuple(bodies.items()),
        parts=tuple(own_parts.items()),
        whole=whole,
        dropped_bytes=_dropped_bytes(text, groups, rendered, whole),
    )


def _dropped_bytes(
    text: bytes,
    groups: Sequence[Group],
    rendered: Sequence[Sequence[Sequence[Piece]]],
    whole: Sequence[Piece],
) -> int:
    dropped = _missing(whole, 0, len(text)) if whole else 0
    for group, blocks in zip(groups, rendered, strict=True):
        dropped += sum(_missing(p, b.start, b.end) for p, b in zip(blocks, group.blocks, strict=True))
    return dropped


def arranged(made: Draft, before: int, choose: Choose) -> tuple[Piece, ...] | None:
    """The text's pieces with each group in the order that `choose` gives; None if the text stays as it is.

    `before` is the hash of all that the model reads before this text.
    """
    text = made.text
    pieces: list[Piece] = []
    read = xxh3_64(seed=before)
    cursor = hashed = 0
    for number, group in enumerate(made.groups):
        blocks = group.blocks
        pieces.append((cursor, blocks[0].start))
        if len(blocks) > 1:
            read.update(applied(text, pieces[hashed:]))
            hashed = len(pieces)
            order = choose(number, read.intdigest())
        else:
            order = (0,)
        for slot, block in enumerate(order):
            if slot:
                pieces.append((blocks[slot - 1].end, blocks[slot].start))
            pieces += made.rendered[number][block]
        cursor = blocks[-1].end
        if order != tuple(range(len(blocks))):
            pieces += ((cursor, group.end), order_annotation(text, group, order))
            cursor = group.end
    pieces += made.whole or ((cursor, len(text)),)
    settled = _joined(*pieces)
    return None if settled == ((0, len(text)),) or not settled else settled


def _joined(*pieces: Piece) -> tuple[Piece, ...]:
    """The same pieces without empty ones, and slices that meet made one."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            joined.append(piece)
        elif piece[0] < piece[1]:
            last = joined[-1] if joined else b""
            if isinstance(last, tuple) and last[1] == piece[0]:
                joined[-1] = (last[0], piece[1])
            else:
                joined.append(piece)
    return tuple(joined)


def _missing(pieces: Sequence[Piece], start: int, end: int) -> int:
    return end - start - sum(len(piece) if isinstance(piece, bytes) else piece[1] - piece[0] for piece in pieces)
