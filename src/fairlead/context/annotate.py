"""The annotations put where a prompt was changed, and nowhere else, in the paper's wording.

Source: ContextPilot, sections 5.3 (order) and 6 (location). How a document is named here is decided in
`context.census`: by what stands in the text, and means nothing else in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.context.blocks import Group

_SNIPPET_BYTES: Final = 60
_UNQUOTABLE: Final = re.compile(rb'[\s"<>\[\]{}\\]+')


def order_annotation(text: bytes, group: Group, names: Sequence[bytes]) -> bytes:
    """The note on the original priority of a group's blocks, for `group.end`; `names` are in the order received."""
    ranking = b" > ".join([b"[" + name + b"]" for name in dict.fromkeys(names)])
    sentence = b"Please read the context in the following priority order: " + ranking + b" and answer the question."
    if group.format == "json":
        return b', "reading_order": ' + msgspec.json.encode(sentence.decode())
    following = text[group.end : group.end + 1]
    return b"\n" + sentence + (b"" if following in (b"", b"\n") else b"\n")


def list_labels(group: Group, order: Sequence[int]) -> list[bytes]:
    """The numbers under which the items of a numbered list stand, when sent in this order: numbers do not move."""
    place_of = {block: place for place, block in enumerate(order)}
    return [b"%d" % (place_of[block] + 1) for block in range(len(order))] + (
        [b"%d" % (len(order) + 1)] if group.last_stays else []
    )


def location_annotation(group: Group, name: bytes, *, here: bool) -> bytes:
    """The reference that replaces a repeated body, whose first copy is in this text (`here`) or in an earlier one."""
    sentence = b"Please refer to [" + name + (b"] above" if here else b"] in the previous conversation")
    return msgspec.json.encode(sentence.decode()) if group.format == "json" else sentence


def passage_annotation(begins: bytes, ends: bytes) -> bytes:
    """The reference that replaces a repeated part of a text."""
    return b'[Please refer to the passage from "' + begins + b'" to "' + ends + b'" in the previous conversation]'


def snippet(text: bytes, start: int, end: int, *, last: bool = False, most_bytes: int = _SNIPPET_BYTES) -> bytes:
    """The first (or last) words of a span, on one line and without what could be taken for markup."""
    part = text[max(start, end - most_bytes) : end] if last else text[start : min(end, start + most_bytes)]
    whole = part.decode("utf-8", "ignore").encode()
    return _UNQUOTABLE.sub(b" ", whole).strip()


def quoted(words: bytes) -> bytes:
    """A document named by its beginning."""
    return b'Doc: "' + words + b'"'


def label_of(name: bytes) -> bytes:
    """What a sentence calls a document of this name."""
    return b"Doc_" + name if name.isdigit() else name
