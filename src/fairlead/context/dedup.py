"""De-duplication: text that occurred earlier in the same prompt is replaced by a reference.

Source: ContextPilot, algorithm 3. Repetitions are looked for within the request, as every request carries its whole
conversation. So a reference always points backwards to a copy that the model will see, and the same conversation gives
the same references at every turn. Bodies are equal if they are equal byte for byte. A block that is not repeated as a
whole may be repeated in part: texts are cut by content, so that a change in one place moves no cut elsewhere.

What cannot be referred to without doubt stays: a document by `census`, a passage if its first or last words stand more
than once in what the model has read before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final
from zlib import crc32

from xxhash import xxh3_128_digest

from fairlead.context.annotate import location_annotation, passage_annotation, snippet
from fairlead.context.blocks import Group
from fairlead.context.census import MOST_BYTES as MOST_SEARCHED_BYTES
from fairlead.context.census import Census, Claim, Named, occurrences, plain
from fairlead.context.escaped import Piece

LEAST_BYTES: Final = 200  # a shorter body is hardly longer than a reference to it
LEAST_IN_PARTS_BYTES: Final = 2048  # shorter spans are not searched for repeated parts: they save less than they cost
_LEAST_PART_BYTES: Final = 512
_QUOTED_BYTES: Final = (60, 120)
_CHUNK_LEAST, _CHUNK_MOST = 256, 4096  # bytes
_CUT_ONE_IN: Final = 4  # one in so many lines beyond the least size ends a chunk
_LINE: Final = re.compile(rb"[^\n]{1,512}\n*|\n+")


class Seen:
    """What the model has read so far: bodies by their digests, parts of texts with their positions, and the texts."""

    __slots__ = ("_plain", "_size_bytes", "_texts", "bodies", "parts")

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self.parts: dict[bytes, int] = {}
        self._texts: list[Callable[[], bytes]] = []
        self._plain: list[bytes] = []
        self._size_bytes = 0

    def read(self, text: Callable[[], bytes], size_bytes: int) -> None:
        """A text as it is sent, without the references in it; called when it is first searched."""
        self._texts.append(text)
        self._size_bytes += size_bytes

    def has_once(self, words: bytes) -> bool:
        """Whether `words`, as `census.plain` gives them, stand once in all texts so far."""
        if self._size_bytes > MOST_SEARCHED_BYTES:
            return False
        self._plain += [plain(text()) for text in self._texts[len(self._plain) :]]
        return occurrences(self._plain, words, 2) == 1


def repeated_blocks(
    text: bytes,
    group: Group,
    named: Sequence[Named],
    seen: Seen,
    here: set[bytes],
    census: Census,
    claims: list[Claim],
) -> dict[int, bytes]:
    """For each repeated block, by its index, the reference that replaces its body; `claims` get what it rests on.

    Bodies that occur for the first time are added to `seen`, and to `here`, which has those of this text.
    """
    references: dict[int, bytes] = {}
    for place, (block, one) in enumerate(zip(group.blocks, named, strict=True)):
        if block.body_end - block.body_start < LEAST_BYTES:
            continue
        if one.digest not in seen.bodies:
            seen.bodies.add(one.digest)
            here.add(one.digest)
            continue
        body = text[block.body_start : block.body_end]
        claim = census.claim(one, body)
        if claim is not None:
            reference = location_annotation(group, claim.words, here=one.digest in here)
            if len(reference) < len(body):
                references[place] = reference
                claims.append(claim)
    return references


def without_repeated_parts(
    text: bytes,
    start: int,
    end: int,
    seen: Seen,
    own: dict[bytes, int],
    text_place: int,
    too_late: Callable[[], bool],
) -> list[Piece] | None:
    """The span's pieces, with references in place of parts that occurred in earlier texts.

    Parts that followed one another there share one reference. The span's own parts and their positions, counted from
    `text_place`, are added to `own`. None if time ran out.
    """
    if end - start < LEAST_IN_PARTS_BYTES:
        return [(start, end)]
    pieces: list[Piece] = []
    kept_to = run_start = run_end = start
    expected = -1  # where the repeated run would continue in the earlier text
    for first, last in chain(chunks(text, start, end), ((end, end),)):
        if too_late():
            return None
        digest = xxh3_128_digest(text[first:last])
        place = seen.parts.get(digest, -1) if first < last else -1
        if place != expected or place < 0:
            reference = _passage(text, run_start, run_end, seen)
            if reference is not None:
                pieces += ((kept_to, run_start), reference)
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


def _passage(text: bytes, start: int, end: int, seen: Seen) -> bytes | None:
    """The reference that replaces a part; None if it is short, or its ends do not mean one place."""
    if end - start < _LEAST_PART_BYTES:
        return None
    ends = []
    for last in (False, True):
        quotations = (snippet(text, start, end, last=last, most_bytes=size) for size in _QUOTED_BYTES)
        found = next((words for words in quotations if words and seen.has_once(words)), None)
        if found is None:
            return None
        ends.append(found)
    return passage_annotation(*ends) + (b"\n" if text[end - 1 : end] == b"\n" else b"")


def chunks(text: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Content-defined chunks of a span: whole lines, cut after lines that their checksum selects."""
    first = start
    for line in _LINE.finditer(text, start, end):
        last = line.end()
        if last - first >= _CHUNK_MOST or (last - first >= _CHUNK_LEAST and crc32(line.group()) % _CUT_ONE_IN == 0):
            yield first, last
            first = last
    if first < end:
        yield first, end
