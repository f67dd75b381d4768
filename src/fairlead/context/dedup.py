"""De-duplication: what the model has read before in the same prompt is referred to, not repeated.

Source: ContextPilot, algorithm 3. What was read before is looked for in the request itself, as every request carries
its whole conversation: so a reference always points backwards to a copy that the model will see, and the same
conversation gives the same references at every turn. Bodies count as equal if they are so byte for byte.

Where a block is not repeated as a whole, parts of it may be: texts are cut where their content says so, so that a
change in one place moves no cut elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from xxhash import xxh3_128_digest

from fairlead.context.annotate import location_annotation, passage_annotation
from fairlead.context.blocks import Group
from fairlead.context.escaped import Piece

LEAST_BYTES: Final = 200  # a shorter body is hardly longer than a reference to it
LEAST_IN_PARTS_BYTES: Final = 2048  # of a shorter span no parts are looked for: they save less than they cost
_LEAST_PART_BYTES: Final = 512
_CHUNK_LEAST, _CHUNK_MOST = 256, 4096  # bytes
_CUT_ONE_IN: Final = 4  # of the lines beyond the least size
_LINE: Final = re.compile(rb"[^\n]{1,512}\n*|\n+")


class Seen:
    """What the model has read so far: bodies with the names they had, and parts of texts with their places."""

    __slots__ = ("bodies", "parts")

    def __init__(self) -> None:
        self.bodies: dict[bytes, bytes] = {}
        self.parts: dict[bytes, int] = {}


def repeated_blocks(text: bytes, group: Group, seen: Seen, here: dict[bytes, bytes]) -> dict[int, bytes]:
    """By the place of a block that was read before, what stands for its body.

    Bodies that are read for the first time are put into `seen`, and into `here`, which has those of this text.
    """
    references: dict[int, bytes] = {}
    for place, block in enumerate(group.blocks):
        body = text[block.body_start : block.body_end]
        if len(body) < LEAST_BYTES:
            continue
        digest = xxh3_128_digest(body)
        name = seen.bodies.get(digest)
        if name is None:
            seen.bodies[digest] = here[digest] = block.name
        else:
            references[place] = location_annotation(text, group, block, name, here=digest in here)
    return references


def without_repeated_parts(
    text: bytes, start: int, end: int, seen: Seen, own: dict[bytes, int], text_place: int
) -> list[Piece]:
    """The span's pieces, with references for the parts that were read in earlier texts.

    Parts are one reference if they followed one another there. The span's own parts and their places, counted from
    `text_place`, are put into `own`.
    """
    if end - start < LEAST_IN_PARTS_BYTES:
        return [(start, end)]
    pieces: list[Piece] = []
    kept_to = run_start = run_end = start
    expected = -1  # where the run would go on in what was read before
    for first, last in (*chunks(text, start, end), (end, end)):
        digest = xxh3_128_digest(text[first:last])
        place = seen.parts.get(digest, -1) if first < last else -1
        if place != expected or place < 0:
            if run_end - run_start >= _LEAST_PART_BYTES:
                line_end = b"\n" if text[run_end - 1 : run_end] == b"\n" else b""
                pieces += ((kept_to, run_start), passage_annotation(text, run_start, run_end) + line_end)
                kept_to = run_end
            run_start = first
        run_end = last if place >= 0 else first
        if place < 0:
            own.setdefault(digest, text_place + first)
            expected = -1
        else:
            expected = place + last - first
    pieces.append((kept_to, end))
    return pieces


def chunks(text: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Content-defined chunks of a span: whole lines, cut after a line whose checksum says so."""
    first = start
    for line in _LINE.finditer(text, start, end):
        last = line.end()
        if last - first >= _CHUNK_MOST or (last - first >= _CHUNK_LEAST and crc32(line.group()) % _CUT_ONE_IN == 0):
            yield first, last
            first = last
    if first < end:
        yield first, end
