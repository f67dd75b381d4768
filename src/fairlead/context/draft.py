"""A text in preparation: its blocks found and repetitions replaced by references, the order of blocks still open.

`arranged` fixes that order. Nothing here keeps state: see `context.reuse`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from fairlead.context.annotate import list_labels, order_annotation
from fairlead.context.blocks import LABEL, Format, Group, find_groups
from fairlead.context.census import Census, Claim, Named, named_blocks
from fairlead.context.dedup import LEAST_IN_PARTS_BYTES, Seen, repeated_blocks, without_repeated_parts
from fairlead.context.escaped import Piece, applied
from fairlead.context.order import Permutation

MOST_GROUPS: Final = 64  # in a text; one with more is prose that mentions tags, and stays unchanged
ORDER_QUOTED_BYTES: Final = 30  # of a document without a name, in the note on the order


class Settings(msgspec.Struct, frozen=True):
    """What is done to a request's blocks, and which formats are searched for."""

    order: bool
    dedup: bool
    formats: tuple[Format, ...]


class Found(msgspec.Struct, frozen=True):
    """A text and the blocks found in it. Texts with too many groups have none: they are prose that mentions tags."""

    text: bytes
    groups: tuple[Group, ...]
    named: tuple[Named, ...]  # the blocks of all groups

    def outside(self) -> bytes:
        """The text between its blocks, without the labels of a numbered list."""
        spans = [(block.start, block.end) for group in self.groups for block in group.blocks]
        starts, ends = [0, *[end for _, end in spans]], [*[start for start, _ in spans], len(self.text)]
        between = b"\n".join([self.text[start:end] for start, end in zip(starts, ends, strict=True)])
        return LABEL.sub(b"", between) if any(group.format == "numbered" for group in self.groups) else between


def found_in(text: bytes, settings: Settings) -> Found:
    groups = find_groups(text, settings.formats)
    if len(groups) > MOST_GROUPS:
        groups = []
    return Found(text, tuple(groups), named_blocks(text, groups))


class Draft(msgspec.Struct, frozen=True):
    """A text whose blocks are known.

    For each group and block, in the order received: its pieces and a hash of its content.
    """

    text: bytes
    groups: tuple[Group, ...] = ()
    named: tuple[Named, ...] = ()
    rendered: tuple[tuple[tuple[Piece, ...], ...], ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()
    references: tuple[tuple[int, ...], ...] = ()  # positions of the blocks that are references
    claims: tuple[Claim, ...] = ()  # what the references rest on
    parts: tuple[tuple[bytes, int], ...] = ()
    whole: tuple[Piece, ...] = ()  # the pieces of a text without groups
    dropped_bytes: int = 0  # bytes saved: what references replaced, less the references

    def names(self, number: int, census: Census) -> Sequence[bytes] | None:
        """How a note on the order names the blocks of a group; None if not all can be named."""
        group = self.groups[number]
        if group.format == "numbered":
            return ()
        first = sum(len(other.blocks) for other in self.groups[:number])
        names = []
        for block, named in zip(group.blocks, self.named[first:], strict=False):
            body = self.text[block.body_start : block.body_end]
            claim = census.claim(named, body, ORDER_QUOTED_BYTES)
            if claim is None:
                return None
            names.append(claim.words)
        return names


Choose = Callable[[int, int], Permutation]  # arguments: group, hash of all that the model reads before it
Names = Callable[[int], Sequence[bytes]]  # argument: a group whose order is changed


def draft(
    found: Found,
    role: str,
    settings: Settings,
    seen: Seen,
    census: Census,
    text_place: int,
    too_late: Callable[[], bool],
) -> Draft | None:
    """Replace what is repeated in a text. What first occurs in it is added to `seen`. None if time ran out."""
    text, groups = found.text, found.groups
    here: set[bytes] = set()
    own_parts: dict[bytes, int] = {}
    claims: list[Claim] = []
    rendered: list[tuple[tuple[Piece, ...], ...]] = []
    references: list[tuple[int, ...]] = []
    whole: tuple[Piece, ...] = ()
    if too_late():
        return None
    first = 0
    for group in groups:
        named = found.named[first : first + len(group.blocks)]
        first += len(group.blocks)
        replaced = repeated_blocks(text, group, named, seen, here, census, claims) if settings.dedup else {}
        references.append(tuple(replaced))
        blocks: list[tuple[Piece, ...]] = []
        for place, block in enumerate(group.blocks):
            body: list[Piece] = [(block.body_start, block.body_end)]
            if place in replaced:
                body = [replaced[place]]
            elif settings.dedup and group.format != "json":
                shorter = without_repeated_parts(
                    text, block.body_start, block.body_end, seen, own_parts, text_place, too_late
                )
                if shorter is None:
                    return None
                body = shorter
            blocks.append(_joined((block.start, block.body_start), *body, (block.body_end, block.end)))
        rendered.append(tuple(blocks))
        if too_late():
            return None
    if settings.dedup and is_plain(found, role):
        shorter = without_repeated_parts(text, 0, len(text), seen, own_parts, text_place, too_late)
        if shorter is None:
            return None
        whole = _joined(*shorter)
    for digest, place in own_parts.items():
        seen.parts.setdefault(digest, place)
    ids = tuple([tuple([xxh3_64_intdigest(applied(text, block)) for block in blocks]) for blocks in rendered])
    return Draft(
        text=text,
        groups=groups,
        named=found.named,
        rendered=tuple(rendered),
        ids=ids,
        references=tuple(references),
        claims=tuple(claims),
        parts=tuple(own_parts.items()),
        whole=whole,
        dropped_bytes=_dropped_bytes(text, groups, rendered, whole),
    )


def is_plain(found: Found, role: str) -> bool:
    """Whether repeated parts are looked for in all of a text: a long answer of a tool without blocks."""
    return (
        role == "tool"
        and not found.groups
        and len(found.text) >= LEAST_IN_PARTS_BYTES
        and not found.text.lstrip().startswith((b"{", b"["))
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


def arranged(made: Draft, before: int, choose: Choose, names: Names) -> tuple[Piece, ...] | None:
    """The text's pieces with each group in the order that `choose` gives; None if the text stays as it is.

    `before` is the hash of all that the model reads before this text. `names` is asked for the names of the blocks of a
    group, other than a numbered list, whose order `choose` has changed.
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
            labels = list_labels(group, order) if group.format == "numbered" else names(number)
            pieces += ((cursor, group.end), order_annotation(text, group, labels))
            cursor = group.end
    pieces += made.whole or ((cursor, len(text)),)
    settled = _joined(*pieces)
    return None if settled == ((0, len(text)),) or not settled else settled


def _joined(*pieces: Piece) -> tuple[Piece, ...]:
    """The same pieces without empty ones, adjacent slices merged."""
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
