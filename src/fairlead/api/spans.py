"""Where the values of a JSON object or list stand in its bytes: one can be replaced and no other byte changes.

Nothing here raises: text that is not JSON, or is nested deeper than the parser goes, has no spans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

Span = tuple[int, int]
JsonPath = tuple[str | int, ...]  # keys and positions, from the outermost value in

MOST_SPANS: Final = 1024  # of one object or list: each costs a microsecond, and no request has as many keys

_KEY: Final = re.compile(rb'\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*:\s*', re.DOTALL)
_COMMA: Final = re.compile(rb"\s*,")
_SPACE: Final = re.compile(rb"\s*")
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def object_spans(text: bytes) -> dict[str, Span] | None:
    """The span of each value of `text`, a JSON object; None if it is none, has a key twice, or over MOST_SPANS keys.

    The time is that of a scan without decoding, so a long value costs little.
    """
    try:
        fields = _decode_fields(text)
    except _UNREADABLE:
        return None
    if len(fields) > MOST_SPANS:
        return None
    spans: dict[str, Span] = {}
    cursor = text.index(b"{") + 1
    for name, raw in fields.items():
        comma = _COMMA.match(text, cursor) if spans else None
        written = _KEY.match(text, comma.end() if comma else cursor)
        if written is None or _name(written.group(1)) != name:
            return None
        cursor = written.end() + len(memoryview(raw))
        spans[name] = written.end(), cursor
    return spans if text[cursor:].strip() == b"}" else None


def list_spans(text: bytes, most: int | None = None) -> list[Span] | None:
    """The span of each item of `text`, a JSON list; None if it is none, or has more than `most` items."""
    try:
        items = _decode_items(text)
    except _UNREADABLE:
        return None
    if most is not None and len(items) > most:
        return None
    spans: list[Span] = []
    cursor = text.index(b"[") + 1
    for raw in items:
        comma = _COMMA.match(text, cursor) if spans else None
        space = _SPACE.match(text, comma.end() if comma else cursor)
        start = space.end() if space else cursor
        cursor = start + len(memoryview(raw))
        spans.append((start, cursor))
    return spans


def replace_at(text: bytes, values: Mapping[JsonPath, bytes]) -> bytes | None:
    """`text`, a JSON value, with the value at each place replaced by a JSON text.

    None if a place is not there, or an object on the way to it has a key twice: which of the two is believed is not
    ours to guess.
    """
    if () in values:
        return values[()]
    inner: dict[str | int, dict[JsonPath, bytes]] = {}
    for place, value in values.items():
        inner.setdefault(place[0], {})[place[1:]] = value
    spans: Mapping[str, Span] | Sequence[Span] | None
    spans = list_spans(text) if isinstance(next(iter(inner)), int) else object_spans(text)
    if spans is None:
        return None
    changed: list[tuple[int, int, bytes]] = []
    for key, below in inner.items():
        span = _span(spans, key)
        new = replace_at(text[slice(*span)], below) if span is not None else None
        if span is None or new is None:
            return None
        changed.append((*span, new))
    return spliced(text, changed)


def spliced(text: bytes, changes: Iterable[tuple[int, int, bytes]]) -> bytes:
    """`text` with each span (start, end) replaced by the bytes that follow it; spans do not overlap."""
    parts: list[memoryview | bytes] = []
    view, cursor = memoryview(text), 0
    for start, end, new in sorted(changes):
        parts += (view[cursor:start], new)
        cursor = end
    return b"".join((*parts, view[cursor:]))


def _span(spans: Mapping[str, Span] | Sequence[Span], key: str | int) -> Span | None:
    if isinstance(spans, Mapping):
        return spans.get(key) if isinstance(key, str) else None
    return spans[key] if isinstance(key, int) and key < len(spans) else None


def _name(written: bytes) -> str:
    if b"\\" in written:
        return msgspec.json.decode(b'"' + written + b'"', type=str)
    return written.decode()
