"""A JSON string literal: its text, and where each byte of the text is in the literal. Clients escape differently.

The kept parts of a text stay byte for byte as the client wrote them, because routing hashes those bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

import msgspec

Piece = tuple[int, int] | bytes  # a piece of a changed text: a slice of the old one, or new text

_UNICODE: Final = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+")
_UNIT: Final = 6  # bytes of one escaped unit, such as \u3042
_U: Final = ord("u")
_decode = msgspec.json.Decoder(str).decode


class Escaped:
    """A JSON string literal, with its quotes. Raises msgspec.DecodeError if it is not valid."""

    __slots__ = ("_raw", "_raw_ends", "_text_ends", "text")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.text = raw[1:-1] if raw.isascii() and b"\\" not in raw else _text(raw)
        self._text_ends: list[int] | None = None
        self._raw_ends: list[int] = []

    @classmethod
    def read(cls, raw: bytes) -> Escaped | None:
        """None if it has half a surrogate pair, which JSON can express and UTF-8 cannot."""
        try:
            return cls(raw)
        except (msgspec.DecodeError, UnicodeError):
            return None

    def written(self, pieces: Iterable[Piece]) -> tuple[Piece, ...]:
        """The pieces of the literal of a changed text: `applied` to the literal they give the new one.

        New text is escaped; slices are as they were.
        """
        written: list[Piece] = [(0, 1)]
        for piece in pieces:
            if isinstance(piece, bytes):
                written.append(msgspec.json.encode(piece.decode())[1:-1])
            else:
                written.append((self._place(piece[0]), self._place(piece[1])))
        return (*written, (len(self._raw) - 1, len(self._raw)))

    def _place(self, offset: int) -> int:
        """Where the text's byte `offset` begins in the literal."""
        text_ends = self._text_ends
        if text_ends is None:
            text_ends = self._text_ends = self._find_escapes()
        last = bisect_right(text_ends, offset) - 1
        place = self._raw_ends[last] + offset - text_ends[last]
        if last + 1 == len(text_ends):
            return place
        run = self._raw.index(b"\\", self._raw_ends[last])
        if place <= run:
            return place
        wanted = place - run  # bytes of text into a run of escaped units
        end = run
        while len(_text(b'"' + self._raw[run:end] + b'"')) < wanted:
            high = self._raw[end + 2 : end + 4].lower()
            end += 2 * _UNIT if b"d8" <= high <= b"db" else _UNIT
        return end

    def _find_escapes(self) -> list[int]:
        """For each escape or run of escaped units: its end in the text and, in `_raw_ends`, in the literal."""
        raw, text_ends, raw_ends = self._raw, [0], self._raw_ends
        text_end, raw_end = 0, 1
        raw_ends.append(raw_end)
        start = raw.find(b"\\", raw_end)
        while start >= 0:
            text_end += start - raw_end
            if raw[start + 1] != _U:
                raw_end = start + 2
                text_end += 1
            else:
                run = _UNICODE.match(raw, start)
                raw_end = run.end() if run else start + _UNIT
                text_end += len(_text(b'"' + raw[start:raw_end] + b'"'))
            text_ends.append(text_end)
            raw_ends.append(raw_end)
            start = raw.find(b"\\", raw_end)
        return text_ends


def applied(text: bytes, pieces: Iterable[Piece]) -> bytes:
    """The changed text."""
    return b"".join([piece if isinstance(piece, bytes) else text[piece[0] : piece[1]] for piece in pieces])


def _text(raw: bytes) -> bytes:
    return _decode(raw).encode()
