"""What the model is told where a prompt was changed, in the paper's wording, and only there.

Source: ContextPilot, sections 5.3 (order) and 6 (location).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.context.blocks import Block, Group

_SNIPPET_BYTES: Final = 60
_UNQUOTABLE: Final = re.compile(rb'[\s"<>\[\]{}\\]+')


def order_annotation(text: bytes, group: Group, order: Sequence[int]) -> bytes:
    """The original priority of a group's blocks, as it is inserted at `group.end`; `order` is how they stand now."""
    place_of = {block: place for place, block in enumerate(order)}
    names = [b"[" + _name(group, block, place_of[block]) + b"]" for block in range(len(order))]
    ranking = b" > ".join(names)
    sentence = b"Please read the context in the following priority order: " + ranking + b" and answer the question."
    if group.format == "json":
        return b', "reading_order": ' + msgspec.json.encode(sentence.decode())
    following = text[group.end : group.end + 1]
    return b"\n" + sentence + (b"" if following in (b"", b"\n") else b"\n")


def location_annotation(text: bytes, group: Group, block: Block, original_name: bytes, *, here: bool) -> bytes:
    """What stands in the place of a body that was read before: `here`, above in this text, or in an earlier one."""
    name = (
        _label(original_name) if original_name else b'Doc: "' + snippet(text, block.body_start, block.body_end) + b'"'
    )
    sentence = b"Please refer to [" + name + (b"] above" if here else b"] in the previous conversation")
    return msgspec.json.encode(sentence.decode()) if group.format == "json" else sentence


def passage_annotation(text: bytes, start: int, end: int) -> bytes:
    """What stands in the place of a part of a text that was read before."""
    begins, ends = snippet(text, start, end), snippet(text, start, end, last=True)
    return b'[Please refer to the passage from "' + begins + b'" to "' + ends + b'" in the previous conversation]'


def snippet(text: bytes, start: int, end: int, *, last: bool = False) -> bytes:
    """The first (or last) words of a span, on one line and without what could be taken for markup."""
    part = text[max(start, end - _SNIPPET_BYTES) : end] if last else text[start : min(end, start + _SNIPPET_BYTES)]
    whole = part.decode("utf-8", "ignore").encode()
    return _UNQUOTABLE.sub(b" ", whole).strip()


def _name(group: Group, block: int, place: int) -> bytes:
    """As the text names the block, where it names all of them differently; else by its place."""
    names = {one.name for one in group.blocks}
    if len(names) == len(group.blocks) and b"" not in names:
        return _label(group.blocks[block].name)
    return b"%d" % (place + 1) if group.format == "numbered" else b"Doc_%d" % (place + 1)


def _label(name: bytes) -> bytes:
    return b"Doc_" + name if name.isdigit() else name
