"""What names a document in a request: a name or a quotation that nothing else in the whole request answers to.

A reference that could mean two documents makes the model read the wrong one, and nobody notices. So a document is
referred to by its own name only if every copy of it has that name and nothing else does; otherwise by the shortest of a
few quotations of its beginning that stands nowhere else; otherwise not at all. Everything that the model reads counts,
the model's own answers included. Positions (`index="1"`) are never names: they are given anew in each list.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from fairlead.context.annotate import label_of, quoted, snippet
from fairlead.context.blocks import Group
from fairlead.context.escaped import Escaped

MOST_BYTES: Final = 1024 * 1024  # of a request that is searched: some 5 ms; in a longer one nothing counts as unique

_QUOTED_BYTES: Final = (60, 120, 240)
_LEAST_LINE_BYTES: Final = 12
_LINE: Final = re.compile(rb'[^\n"<>\[\]{}\\]*')
# Two patterns, as each begins with a literal, which Python's search is fast for.
_NAMES: Final = tuple(
    re.compile(word + rb"""["']?\s{0,8}[=:]\s{0,8}(?:"([^"<>]{1,70})"|'([^'<>]{1,70})'|([^\s"'<>,}\]]{1,70}))""")
    for word in (rb"id", rb"name")
)
_PLAIN: Final = bytes(b if bytes((b,)) not in b' \t\n\r\f\v"<>[]{}\\' else 32 for b in range(256))


class Named(msgspec.Struct, frozen=True, gc=False):
    """A document in a text: its label (empty if it has no name), and the digest of its body."""

    label: bytes
    digest: bytes


class Claim(msgspec.Struct, frozen=True, gc=False):
    """That a name (`label`) or a quotation (`quotation`) means the document of this digest and nothing else."""

    digest: bytes
    label: bytes = b""
    quotation: bytes = b""

    @property
    def words(self) -> bytes:
        """How a sentence names the document."""
        return self.label or quoted(self.quotation)


def named_blocks(text: bytes, groups: Sequence[Group]) -> tuple[Named, ...]:
    """The documents of a text, in text order."""
    return tuple(
        Named(label_of(block.name) if block.name else b"", xxh3_128_digest(text[block.body_start : block.body_end]))
        for group in groups
        for block in group.blocks
    )


def plain(text: bytes) -> bytes:
    """The text on one line, without what a quotation may not hold."""
    return b" ".join(text.translate(_PLAIN).split())


def decoded(raw: bytes) -> bytes:
    """The text of a JSON string, or any other JSON as it is written."""
    escaped = Escaped.read(raw) if raw[:1] == b'"' else None
    return raw if escaped is None else escaped.text


class Census:
    """The texts that a request consists of, or some of them; looked through when the first question is asked."""

    __slots__ = ("_bytes", "_copies", "_labels", "_named", "_plain", "_raws")

    def __init__(self) -> None:
        self._raws: list[bytes] = []
        self._bytes = 0
        self._named: Counter[Named] = Counter()
        self._copies: Counter[bytes] = Counter()
        self._labels: Counter[bytes] | None = None
        self._plain: list[bytes] | None = None

    def add(self, raw: bytes, blocks: Sequence[Named]) -> None:
        """A text as received (JSON), with the documents that were found in it."""
        self._raws.append(raw)
        self._bytes += len(raw)
        self._named.update(blocks)
        self._copies.update([block.digest for block in blocks])

    def claim(self, named: Named, body: bytes, least_bytes: int = _QUOTED_BYTES[0]) -> Claim | None:
        """How to refer to a document; None if nothing short means it alone. The quotation begins with `least_bytes`."""
        if self._bytes > MOST_BYTES:
            return None
        if named.label and self._copies[named.digest] == self._named[named]:
            claim = Claim(named.digest, label=named.label)
            if self.holds(claim):
                return claim
        for quotation in _beginnings(body, least_bytes):
            claim = Claim(named.digest, quotation=quotation)
            if self.holds(claim):
                return claim
        return None

    def holds(self, claim: Claim) -> bool:
        """Whether nothing in these texts but copies of its document answers to a claim."""
        if self._bytes > MOST_BYTES:
            return False
        if claim.label:
            return self._found_labels()[claim.label] == self._named[Named(claim.label, claim.digest)]
        copies = self._copies[claim.digest]
        return occurrences(self._plain_texts(), claim.quotation, copies + 1) == copies

    def _found_labels(self) -> Counter[bytes]:
        """How often each label is given to anything, whether it was found to be a document or not."""
        if self._labels is None:
            self._labels = Counter(
                label_of(next(filter(None, groups)))
                for raw in self._raws
                for text in (decoded(raw),)
                for pattern in _NAMES
                for groups in pattern.findall(text)
            )
        return self._labels

    def _plain_texts(self) -> list[bytes]:
        if self._plain is None:
            self._plain = [plain(decoded(raw)) for raw in self._raws]
        return self._plain


def occurrences(texts: Sequence[bytes], words: bytes, most: int) -> int:
    """How often `words` stands in the texts, counted up to `most`; occurrences may overlap."""
    count = 0
    for text in texts:
        place = text.find(words)
        while place >= 0:
            count += 1
            if count >= most:
                return count
            place = text.find(words, place + 1)
    return count


def _beginnings(body: bytes, least_bytes: int) -> Iterator[bytes]:
    """Quotations of a body's beginning, the shortest first: its first line, then as many bytes as it takes."""
    line = _LINE.match(body)
    first = b"" if line is None else line.group().strip()
    if _LEAST_LINE_BYTES <= len(first) < least_bytes:
        yield first
    for size in (least_bytes, *[size for size in _QUOTED_BYTES if size > least_bytes]):
        if quotation := snippet(body, 0, len(body), most_bytes=size):
            yield quotation
