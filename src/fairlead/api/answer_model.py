"""The `model` of an answer, as the client named it, where the engine was asked for another one.

Only that value changes: no other byte, and no text of the answer that looks alike. What cannot be read, and what is too
long to be held, passes as it is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead.api.spans import object_spans, spliced

MOST_WHOLE_BYTES: Final = 256 << 10  # of an answer in one piece, which is held until it is whole
_MOST_LINE_BYTES: Final = 64 << 10  # of one event
_DATA: Final = b"data:"
_KEY: Final = b'"model"'
_QUOTE: Final = ord('"')
_INNER: Final = ("response", "message")  # in which OpenAI's and Anthropic's events have it


class AnswerModel:
    """`feed` it each part of an answer's body; it gives what the client gets instead. `events`: of a stream.

    `length` is that of an answer in one piece: its end must be known before the body's last part is passed on.
    """

    __slots__ = ("_begun", "_events", "_left", "_model", "_parts", "_passes")

    def __init__(self, model: str, *, events: bool, length: int = 0) -> None:
        self._model = msgspec.json.encode(model)
        self._events = events
        self._left = length
        self._parts: list[bytes] = []  # of an answer in one piece
        self._begun = b""  # a line
        self._passes = False  # to the end of this line

    def feed(self, part: bytes, *, has_ended: bool) -> bytes:
        return self._feed_events(part, has_ended=has_ended) if self._events else self._feed_whole(part, has_ended)

    def _feed_whole(self, part: bytes, has_ended: bool) -> bytes:
        self._parts.append(part)
        self._left -= len(part)
        if self._left > 0 and not has_ended:
            return b""
        whole = b"".join(self._parts)
        self._parts.clear()
        return self._named(whole)

    def _feed_events(self, part: bytes, *, has_ended: bool) -> bytes:
        *lines, begun = (self._begun + part).split(b"\n")
        made: list[bytes] = []
        for line in lines:
            made += (line if self._passes else self._line(line), b"\n")
            self._passes = False
        if has_ended or self._passes or len(begun) > _MOST_LINE_BYTES:
            self._passes = self._passes or not has_ended
            made.append(begun)
            begun = b""
        self._begun = begun
        return b"".join(made)

    def _line(self, line: bytes) -> bytes:
        return _DATA + self._named(line[len(_DATA) :]) if line.startswith(_DATA) and _KEY in line else line

    def _named(self, text: bytes) -> bytes:
        """`text`, a JSON object, with the client's name; unchanged if it is none, or has no model."""
        spans = object_spans(text)
        if spans is None:
            return text
        if "model" in spans:
            start, end = spans["model"]
            return spliced(text, [(start, end, self._model)]) if text[start] == _QUOTE else text
        for key in _INNER:
            if key in spans:
                start, end = spans[key]
                inner = object_spans(text[start:end])
                if inner is not None and "model" in inner and text[start + inner["model"][0]] == _QUOTE:
                    at, to = inner["model"]
                    return spliced(text, [(start + at, start + to, self._model)])
        return text
