"""Code, comments and CDATA of a text: elements in them are words about documents, such as an example of their form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_ENDS: Final = {b"<!--": b"-->", b"<![CDATA[": b"]]>"}
_FENCES: Final = (b"```", b"~~~")
_ALL: Final = (*_ENDS, *_ENDS.values(), *_FENCES)
_MOST_MARKS: Final = 1024  # in a text; in one with more nobody can tell
_MOST_INDENT: Final = 64  # bytes before a fence: space, and the marks of a quotation
_MOST_INFO: Final = 256  # bytes behind it


class _Mark(NamedTuple):
    place: int
    text: bytes  # of a fence: all its backquotes or tildes
    info: bytes = b""  # what stands behind a fence in its line


def are_literal(text: bytes, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """For each of these elements, in text order, whether it is in code, a comment or CDATA; or holds the beginning
    of a comment or of CDATA that goes on behind it, so that its end tag is not its end.

    Fences inside an element are its own: a retriever cuts documents anywhere.
    """
    if not any(start in text for start in (*_ENDS, *_FENCES)):
        return [False] * len(spans)
    if sum(map(text.count, _ALL)) > _MOST_MARKS:
        return [True] * len(spans)
    marks = _marks(text)
    literal: list[bool] = []
    waits_for = b""  # what ends the literal that has begun, or its fence
    next_mark = 0
    for start, end in spans:
        before, inside = _until(marks, next_mark, start), _until(marks, next_mark, end)
        waits_for = _after(marks[next_mark:before], waits_for)
        if waits_for:
            literal.append(True)
            waits_for = _after(marks[before:inside], waits_for)
        else:
            waits_for = _after([mark for mark in marks[before:inside] if mark.text[:3] not in _FENCES], waits_for)
            literal.append(bool(waits_for))
        next_mark = inside
    return literal


def may_be_commented(text: bytes, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether any of these is in a comment or in CDATA; or in code, of a text that has one of the two as well."""
    return any(start in text for start in _ENDS) and any(are_literal(text, spans))


def _marks(text: bytes) -> list[_Mark]:
    """In text order. Each kind is looked for by itself, as an expression of all takes ten times as long."""
    found: list[_Mark] = []
    for mark in (*_ENDS, *_ENDS.values()):
        place = text.find(mark)
        while place >= 0:
            found.append(_Mark(place, mark))
            place = text.find(mark, place + len(mark))
    for mark in _FENCES:
        place = text.find(mark)
        while place >= 0:
            line = text[place : place + _MOST_INFO].partition(b"\n")[0]
            info = line.lstrip(mark[:1])
            whole = line[: len(line) - len(info)]
            if _begins_line(text, place):
                found.append(_Mark(place, whole, info.strip()))
            place = text.find(mark, place + len(whole))
    return sorted(found)


def _begins_line(text: bytes, place: int) -> bool:
    before = text[max(0, place - _MOST_INDENT) : place]
    line = before.rpartition(b"\n")[2]
    return (line != before or place <= _MOST_INDENT) and not line.strip(b" \t>")


def _until(marks: Sequence[_Mark], first: int, place: int) -> int:
    while first < len(marks) and marks[first].place < place:
        first += 1
    return first


def _after(marks: Iterable[_Mark], waits_for: bytes) -> bytes:
    for mark in marks:
        if not waits_for:
            # ```this``` is code within prose.
            waits_for = mark.text if mark.text[:3] in _FENCES and b"`" not in mark.info else _ENDS.get(mark.text, b"")
        elif mark.text == waits_for or (mark.text[:3] in _FENCES and mark.text.startswith(waits_for)):
            # A fence that is shorter than the first, or has a word behind it, is code.
            waits_for = waits_for if mark.info else b""
    return waits_for
