"""Context blocks in a text: documents, passages or results put there by a retriever, each with its exact position.

Source: ContextPilot, section 1 (a block is any discrete unit of external context). Blocks are spans of bytes, so
moving them leaves every other byte in place. Doubtful cases are left alone: a list whose items are cited elsewhere,
an item whose end the list does not show, elements with text between them or tags that do not pair. Time is bounded by
caps checked before parsing: a text with more markup than documents have, or more blocks than a retriever returns, is
left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Final, Literal, get_args

import msgspec

from fairlead.api.spans import list_spans, object_spans
from fairlead.context.literal import are_literal, may_be_commented

Format = Literal["xml", "numbered", "json", "markdown", "separator"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
MOST_BLOCKS: Final = 128  # in a text, over all its groups
_MOST_MARKS: Final = 8192  # tags, brackets, lines or objects in a text: each takes some 0.1 us to check
DEFAULT_FORMATS: Final[tuple[Format, ...]] = ("xml", "numbered", "json")


class Block(msgspec.Struct, frozen=True, gc=False):
    """One block. Its span is what moves; its body, inside the span, is what a reference may replace."""

    start: int
    end: int
    body_start: int
    body_end: int
    name: bytes = b""  # as the text itself names it; a position is no name


class Group(msgspec.Struct, frozen=True, gc=False):
    """Blocks that follow one another, with nothing but space or labels between them."""

    format: Format
    blocks: tuple[Block, ...]
    end: int  # where an annotation of the whole group goes: after it, or inside its JSON object
    last_stays: bool = False  # one more item follows, whose end is unknown: it is no block and stays in its place


def find_groups(text: bytes, formats: Iterable[Format] = DEFAULT_FORMATS) -> list[Group]:
    """Groups of blocks in a text (UTF-8), in text order, found by the first of FORMATS that finds any."""
    wanted = frozenset(formats)
    for name in FORMATS:
        if name in wanted and text.count(_MARKS[name]) <= _MOST_MARKS and (groups := _FINDERS[name](text)):
            return groups if sum([len(group.blocks) for group in groups]) <= MOST_BLOCKS else []
    return []


# ---- XML ------------------------------------------------------------------------------------------------------------

_ITEM: Final = b"document|doc|passage|context|source|search_result"
_TOKEN: Final = re.compile(rb"<(/?)(" + _ITEM + rb")(\s[^<>]*)?>")
_WRAPPER_END: Final = re.compile(rb"\s*</(?:documents|docs|passages|contexts|context|sources|search_results)>")
_MOST_TOKENS: Final = 8 * MOST_BLOCKS  # opening and closing tags of blocks and of elements of the same name inside them
_ID: Final = re.compile(rb"""\s(?:id|doc_id|name)\s*=\s*["']([^"'<>\[\]]{1,64})["']""")


def _xml(text: bytes) -> list[Group]:
    if b"</" not in text:
        return []
    found = list(islice(_TOKEN.finditer(text), _MOST_TOKENS + 1))
    if len(found) > _MOST_TOKENS:
        return []
    tokens = _paired([token for token in found if not (token.group(3) or b"").endswith(b"/")])
    if tokens is None:
        return []
    elements = list(_elements(text, tokens))
    literal = are_literal(text, [(block.start, block.end) for block in elements])
    blocks = [block for block, is_literal in zip(elements, literal, strict=True) if not is_literal]
    groups: list[Group] = []
    run: list[Block] = []
    for block, following in zip(blocks, [*blocks[1:], None], strict=False):
        run.append(block)
        if following is None or text[block.end : following.start].strip():
            closing = _WRAPPER_END.match(text, block.end)
            groups.append(Group("xml", tuple(run), closing.end() if closing else block.end))
            run = []
    return groups


def _paired(tokens: Sequence[re.Match[bytes]]) -> list[re.Match[bytes]] | None:
    """The tags that pair, without those of names that are never closed (prose); None if any other tag has no partner.

    A document that mentions a tag of its own kind would otherwise end there, and leave its rest behind.
    """
    closed = {token.group(2) for token in tokens if token.group(1)}
    kept = [token for token in tokens if token.group(2) in closed]
    open_tags: list[bytes] = []
    for token in kept:
        if not token.group(1):
            open_tags.append(token.group(2))
        elif not open_tags or open_tags.pop() != token.group(2):
            return None
    return None if open_tags else kept


def _elements(text: bytes, tokens: Sequence[re.Match[bytes]]) -> Iterator[Block]:
    """The outermost elements."""
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
    """Index of each opening tag to that of its closing tag."""
    ends: dict[int, int] = {}
    waiting: list[int] = []
    for place, token in enumerate(tokens):
        if token.group(1):
            ends[waiting.pop()] = place
        else:
            waiting.append(place)
    return ends


def _is_wrapper(tokens: Sequence[re.Match[bytes]], place: int, end: int) -> bool:
    """Whether an element holds blocks: `<context>` is a block in some prompts and the wrapper of all in others."""
    following = tokens[place + 1]
    return tokens[place].group(2) == b"context" and place + 1 < end and following.group(2) != b"context"


# ---- lists ----------------------------------------------------------------------------------------------------------

LABEL: Final = re.compile(rb"^[ \t]*\[(\d{1,3})\][ \t]*:?[ \t]*", re.MULTILINE)
_CITATION: Final = re.compile(rb"\[(\d{1,3})\]")
# What shows that a list has ended: the question, under its usual headings, or as one line at the end of the text.
_HEADED: Final = rb"(?:question|query|q|user question|user query)[ \t]*:"
_QUESTION: Final = re.compile(rb"\s*(?:" + _HEADED + rb"|(?<=\n\n)[^\n]*\?\s*\Z)", re.IGNORECASE)
# With an answer or a second question, the first may be the last item's own.
_ANOTHER: Final = re.compile(rb"^[ \t]*(?:" + _HEADED + rb"|(?:answer|a)[ \t]*:[ \t]*\S)", re.IGNORECASE | re.MULTILINE)
_OPENING: Final = re.compile(rb"(?:<([A-Za-z_]\w{0,40})(?:\s[^<>]{0,200})?>|(```))[^\S\n]*\n?\s*\Z")
_MOST_BEFORE: Final = 256  # bytes before a list in which its wrapper may open


def _numbered(text: bytes) -> list[Group]:
    """`[1] ...`, `[2] ...`, each at the start of a line.

    Labels are not part of the blocks: they stay where they are. So does the last item where the list does not show that
    it has ended: what follows may be the question or one more of its lines.
    """
    if b"[1]" not in text:
        return []
    labels = list(islice(LABEL.finditer(text), MOST_BLOCKS + 1))
    numbers = [int(label.group(1)) for label in labels]
    if not 2 <= len(labels) <= MOST_BLOCKS or numbers != list(range(1, 1 + len(numbers))):
        return []
    spans = [_trimmed(text, label.end(), following.start()) for label, following in pairwise(labels)]
    list_end = _list_end(text, labels[0].start(), labels[-1].end(), spans)
    if list_end is not None:
        spans.append(_trimmed(text, labels[-1].end(), list_end))
    outside = text[: labels[0].start()] + text[labels[-1].end() if list_end is None else list_end :]
    if any(int(cited.group(1)) in numbers for cited in _CITATION.finditer(outside)):
        return []  # the text cites a number: putting another block under it would change the meaning
    if len(spans) < 2 or any(start == end for start, end in spans) or may_be_commented(text, spans):
        return []
    blocks = tuple([Block(*span, *span) for span in spans])
    return [Group("numbered", blocks, blocks[-1].end if list_end else len(text), last_stays=list_end is None)]


def _list_end(text: bytes, list_start: int, last_start: int, spans: Sequence[tuple[int, int]]) -> int | None:
    """Where the last item ends, if the text shows it: the wrapper around the list closes; or all items are single
    lines, and the text ends or the question follows.
    """
    opening = _OPENING.search(text[max(0, list_start - _MOST_BEFORE) : list_start])
    if opening is not None:
        closing = b"\n" + (b"</" + opening.group(1) + b">" if opening.group(1) else b"```")
        place = text.find(closing, last_start)
        is_line = place >= 0 and not text[place + len(closing) :].split(b"\n", 1)[0].strip()
        return place if is_line and text.find(closing, place + 1) < 0 else None
    if any(b"\n" in text[start:end] for start, end in spans):
        return None
    line_end = text.find(b"\n", last_start)
    is_last_line = line_end < 0 or not text[line_end:].strip()
    if is_last_line:
        return len(text)
    asked = _QUESTION.match(text, line_end)
    return line_end if asked is not None and _ANOTHER.search(text, asked.end()) is None else None


# ---- JSON -----------------------------------------------------------------------------------------------------------

_LISTS: Final = ("results", "documents", "passages", "contexts", "sources")


def _json(text: bytes) -> list[Group]:
    """The objects of `results[]` (or documents, ...) of a text that is one JSON object, as a tool answers."""
    if text[:1] != b"{" and not text[:64].lstrip().startswith(b"{"):
        return []
    fields = object_spans(text)
    if fields is None:
        return []
    for key in _LISTS:
        start, end = fields.get(key, (0, 0))
        items = list_spans(text[start:end], MOST_BLOCKS) if text[start : start + 1] == b"[" else None
        if items and all(text[start + first : start + first + 1] == b"{" for first, _ in items):
            if any(_is_parallel(text[slice(*span)], len(items)) for other, span in fields.items() if other != key):
                return []  # another list may go with this one, item by item
            spans = [(start + first, start + last) for first, last in items]
            blocks = tuple([Block(*span, *span, _json_name(text[slice(*span)])) for span in spans])
            return [Group("json", blocks, text.rindex(b"}"))]
    return []


def _is_parallel(value: bytes, items: int) -> bool:
    if items < 2 or value[:1] != b"[":
        return False
    others = list_spans(value, items)
    return others is not None and len(others) == items


class _Named(msgspec.Struct, gc=False):
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    doc_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    document_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_named = msgspec.json.Decoder(_Named).decode


def _json_name(item: bytes) -> bytes:
    named = _decode_named(item)
    for value in (named.id, named.doc_id, named.document_id):
        if value is not msgspec.UNSET:
            name = bytes(memoryview(value)[:70]).strip(b'"')
            return name if len(name) <= 64 and not set(name) & set(b'\\"[]{}') else b""
    return b""


# ---- only if configured
# ------------------------------------------------------------------------------------------------

_HEADING: Final = re.compile(rb"^(?:(#{1,6})[ \t]+\S[^\n]*\n|[ \t]*(`{3,}|~{3,})([^\n]*))", re.MULTILINE)
_SEPARATOR: Final = re.compile(rb"^(?:-{3,}|={3,}|\*{3,})[ \t]*\n", re.MULTILINE)


def _markdown(text: bytes) -> list[Group]:
    """Sections under headings of the level of the first one, which must be the highest. Code is not searched."""
    headings: list[re.Match[bytes]] = []
    fence = b""
    for found in islice(_HEADING.finditer(text), _MOST_TOKENS):
        if marks := found.group(2):
            if not fence:
                fence = marks
            elif marks.startswith(fence) and not found.group(3).strip():  # a shorter one, or one with a word, is code
                fence = b""
        elif not fence:
            headings.append(found)
    levels = [len(heading.group(1)) for heading in headings]
    if not levels or min(levels) < levels[0] or fence:
        return []
    starts = [heading.start() for heading, level in zip(headings, levels, strict=True) if level == levels[0]]
    spans = [_trimmed(text, start, end) for start, end in pairwise(starts)]  # the last may hold the question
    return [Group("markdown", tuple([Block(*span, *span) for span in spans]), len(text))] if len(spans) > 1 else []


def _separator(text: bytes) -> list[Group]:
    """Text between two lines of ---, === or ***, all like the first. Text before the first and after the last line is
    no block.
    """
    found = list(islice(_SEPARATOR.finditer(text), _MOST_TOKENS))
    lines = [line for line in found if line.group().strip() == found[0].group().strip()][: MOST_BLOCKS + 2]
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
_MARKS: Final[dict[Format, bytes]] = {
    "xml": b"<", "numbered": b"[", "json": b"{", "markdown": b"\n", "separator": b"\n",
}  # fmt: skip
