"""Context blocks in a text: the documents, passages or results that a retriever put there, each with its exact place.

Source: ContextPilot, section 1 (a block is any discrete unit of external context). Found are spans of bytes; whoever
moves them leaves every other byte where it was. In doubt nothing is found: a list whose items are cited elsewhere, an
item that may hold the question too, elements with text between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, get_args

import msgspec

from fairlead.core.spans import list_spans, object_spans

Format = Literal["xml", "numbered", "json", "markdown", "separator"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
DEFAULT_FORMATS: Final[tuple[Format, ...]] = ("xml", "numbered", "json")


class Block(msgspec.Struct, frozen=True, gc=False):
    """One block. The span is what moves; the body, within it, is what may be replaced by a reference."""

    start: int
    end: int
    body_start: int
    body_end: int
    name: bytes = b""  # as the text itself names it


class Group(msgspec.Struct, frozen=True, gc=False):
    """Blocks that follow one another, with nothing but space or labels between them."""

    format: Format
    blocks: tuple[Block, ...]
    end: int  # where a remark on the whole group belongs: after it, or inside its JSON object


def find_groups(text: bytes, formats: Iterable[Format] = DEFAULT_FORMATS) -> list[Group]:
    """Groups of blocks in a text (UTF-8), in its order; of the first format, in the order of FORMATS, that has any."""
    wanted = frozenset(formats)
    for name in FORMATS:
        if name in wanted and (groups := _FINDERS[name](text)):
            return groups
    return []


# ---- XML ------------------------------------------------------------------------------------------------------------

_ITEM: Final = b"document|doc|passage|context|source|search_result"
_TOKEN: Final = re.compile(rb"<(/?)(" + _ITEM + rb")(\s[^<>]*)?>")
_WRAPPER_END: Final = re.compile(rb"\s*</(?:documents|docs|passages|contexts|context|sources|search_results)>")
_ID: Final = re.compile(rb"""\s(?:id|doc_id|index|name)\s*=\s*["']([^"'<>\[\]]{1,64})["']""")


def _xml(text: bytes) -> list[Group]:
    if b"</" not in text:
        return []
    tokens = [token for token in _TOKEN.finditer(text) if not (token.group(3) or b"").endswith(b"/")]
    blocks = list(_elements(text, tokens))
    groups: list[Group] = []
    run: list[Block] = []
    for block, following in zip(blocks, [*blocks[1:], None], strict=False):
        run.append(block)
        if following is None or text[block.end : following.start].strip():
            closing = _WRAPPER_END.match(text, block.end)
            groups.append(Group("xml", tuple(run), closing.end() if closing else block.end))
            run = []
    return groups


def _elements(text: bytes, tokens: Sequence[re.Match[bytes]]) -> Iterator[Block]:
    """The outermost elements. A tag that is never closed opens nothing."""
    ends = _element_ends(tokens)
    skip_to = 0
    for place, token in enumerate(tokens):
        end = ends.get(place)
        if end is None or place < skip_to or _is_wrapper(tokens, place, end):
            continue
        skip_to = end + 1
        inner = token.end(), tokens[end].start()
        named = _ID.search(token.group(3) or b"")
        yield Block(token.start(), tokens[end].end(), *_trimmed(text, *inner), named.group(1) if named else b"")


def _element_ends(tokens: Sequence[re.Match[bytes]]) -> dict[int, int]:
    """By the place of an opening tag that of its closing one. Tags of other names between them do not matter."""
    ends: dict[int, int] = {}
    open_tags: dict[bytes, list[int]] = {}
    for place, token in enumerate(tokens):
        waiting = open_tags.setdefault(token.group(2), [])
        if not token.group(1):
            waiting.append(place)
        elif waiting:
            ends[waiting.pop()] = place
    return ends


def _is_wrapper(tokens: Sequence[re.Match[bytes]], place: int, end: int) -> bool:
    """`<context>` is a block in some prompts, and in others what holds all of them."""
    following = tokens[place + 1]
    return tokens[place].group(2) == b"context" and place + 1 < end and following.group(2) != b"context"


# ---- lists ----------------------------------------------------------------------------------------------------------

_LABEL: Final = re.compile(rb"^[ \t]*\[(\d{1,3})\][ \t]*:?[ \t]*", re.MULTILINE)
_CITATION: Final = re.compile(rb"\[(\d{1,3})\]")
_BREAKS: Final = (b"\n", b"\n\n")


def _numbered(text: bytes) -> list[Group]:
    """`[1] ...`, `[2] ...`, each at the start of a line. Labels are not of the blocks: they stay in their places."""
    if b"[1]" not in text:
        return []
    labels = list(_LABEL.finditer(text))
    numbers = [int(label.group(1)) for label in labels]
    if len(labels) < 2 or numbers != list(range(1, 1 + len(numbers))):
        return []
    starts = [label.end() for label in labels]
    ends = [label.start() for label in labels[1:]]
    blocks = _with_last(text, starts, ends)
    last_end = blocks[-1].end if blocks and blocks[-1].start >= starts[-1] else None
    outside = text[: labels[0].start()] + text[starts[-1] if last_end is None else last_end :]
    if any(int(cited.group(1)) in numbers for cited in _CITATION.finditer(outside)):
        return []  # to put another block under a number that is spoken of would change what is said
    return [Group("numbered", tuple(blocks), last_end or len(text))] if len(blocks) > 1 else []


def _with_last(text: bytes, starts: Sequence[int], ends: Sequence[int]) -> list[Block]:
    """Blocks from `starts` to `ends`; and the last, which has no end, up to a break that no other block has inside.

    What follows the last block (the question, often) must not be taken for a part of it. Where that cannot be told, the
    last block is left out, and so stays where it is.
    """
    spans = [_trimmed(text, start, end) for start, end in zip(starts, ends, strict=False)]
    inside = max(sum(mark in text[start:end] for mark in _BREAKS) for start, end in spans)
    start = starts[-1]
    if inside < len(_BREAKS):
        end = text.find(_BREAKS[inside], start)
        last = _trimmed(text, start, end if end >= 0 else len(text))
    else:
        last = _trimmed(text, start, len(text))
    if b"\n" not in text[slice(*last)]:
        spans.append(last)
    return [Block(*span, *span) for span in spans if span[0] < span[1]]


# ---- JSON -----------------------------------------------------------------------------------------------------------

_LISTS: Final = ("results", "documents", "passages", "contexts", "sources")
_NAMES: Final = ("id", "doc_id", "document_id")


def _json(text: bytes) -> list[Group]:
    """The objects of `results[]` (or documents, ...) of a text that is one JSON object, as a tool answers."""
    if text[:1] != b"{" and not text[:64].lstrip().startswith(b"{"):
        return []
    fields = object_spans(text)
    if fields is None:
        return []
    for key in _LISTS:
        start, end = fields.get(key, (0, 0))
        items = list_spans(text[start:end]) if text[start : start + 1] == b"[" else None
        if items and all(text[start + first : start + first + 1] == b"{" for first, _ in items):
            spans = [(start + first, start + last) for first, last in items]
            blocks = tuple([Block(*span, *span, _json_name(text[slice(*span)])) for span in spans])
            return [Group("json", blocks, text.rindex(b"}"))]
    return []


def _json_name(item: bytes) -> bytes:
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(item, type=dict[str, msgspec.Raw])
    for key in _NAMES:
        if key in fields:
            name = bytes(fields[key]).strip(b'"')
            return name if len(name) <= 64 and not set(name) & set(b'\\"[]{}') else b""
    return b""


# ---- when asked for -------------------------------------------------------------------------------------------------

_HEADING: Final = re.compile(rb"^(#{1,6})[ \t]+\S[^\n]*\n", re.MULTILINE)
_SEPARATOR: Final = re.compile(rb"^(?:-{3,}|={3,}|\*{3,})[ \t]*\n", re.MULTILINE)


def _markdown(text: bytes) -> list[Group]:
    """Sections under headings of the level of the first one."""
    headings = list(_HEADING.finditer(text))
    starts = [heading.start() for heading in headings if heading.group(1) == headings[0].group(1)]
    if len(starts) < 2:
        return []
    spans = [_trimmed(text, start, end) for start, end in pairwise(starts)]  # the last may hold the question
    return [Group("markdown", tuple([Block(*span, *span) for span in spans]), len(text))] if len(spans) > 1 else []


def _separator(text: bytes) -> list[Group]:
    """What stands between two lines of ---, === or ***. Before the first and after the last are no blocks."""
    lines = list(_SEPARATOR.finditer(text))
    spans = [_trimmed(text, one.end(), other.start()) for one, other in pairwise(lines)]
    blocks = tuple([Block(*span, *span) for span in spans if span[0] < span[1]])
    return [Group("separator", blocks, lines[-1].end())] if len(blocks) > 1 else []


def _trimmed(text: bytes, start: int, end: int) -> tuple[int, int]:
    """The span without space at its ends."""
    inner = text[start:end]
    start += len(inner) - len(inner.lstrip())
    return start, max(start, end - (len(inner) - len(inner.rstrip())))


_FINDERS: Final[dict[Format, Callable[[bytes], list[Group]]]] = {
    "xml": _xml,
    "numbered": _numbered,
    "json": _json,
    "markdown": _markdown,
    "separator": _separator,
}
