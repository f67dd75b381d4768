"""How much one request body may hold: of its parts, and of what it names.

Every limit is far above what a real request has; they bound the work that a crafted one can cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

MOST_ITEMS: Final = 131_072  # objects and lists of a body, outside of its strings; messages and parts among them
MOST_KEYS: Final = 4 * MOST_ITEMS  # of all its objects
MOST_ATTEMPTED: Final = 32  # a longer list says nothing more, and penalty**attempts must stay a float
MOST_ANSWERS: Final = 1024  # that one body is counted to ask for
MOST_NAME_CHARACTERS: Final = 256  # of a model
_WINDOW_BYTES: Final = 1 << 20
_FEW: Final = 256
_LEAST_BYTES_OF_KEY: Final = 4  # `"":0`


class Limits(NamedTuple):
    """Of a body's messages, and as many parts; and of its parts where one is an image, as each list is then parsed."""

    items: int
    items_with_media: int
    values: int  # where media may be anywhere in them


OF_ANY: Final = Limits(MOST_ITEMS, MOST_ITEMS, MOST_KEYS)
INLINE: Final = Limits(4096, 1024, 8192)  # between two other requests


def count_of(text: bytes, byte: bytes) -> int:
    """`text.count(byte)`, which takes half a nanosecond for each byte of the text; here those between the first few
    that are found are jumped over.
    """
    at = -1
    for number in range(_FEW):
        at = text.find(byte, at + 1)
        if at < 0:
            return number
    return _FEW + text.count(byte, at + 1)


def has_too_many_items(body: bytes, most: int = MOST_ITEMS) -> bool:
    """Whether JSON has more than `most` objects and lists, or four times as many keys, outside of its strings.

    The time is linear, in little memory: a body of 24 MB may hold eight million empty objects, and they are counted
    before any parser makes them.
    """
    most_keys = most * (MOST_KEYS // MOST_ITEMS)
    has_few_keys = len(body) < _LEAST_BYTES_OF_KEY * most_keys or body.count(b":") <= most_keys
    if has_few_keys and count_of(body, b"{") + count_of(body, b"[") <= most:
        return False
    items = keys = 0
    for outside in _outside_of_strings(body):
        items += outside.count(b"{") + outside.count(b"[")
        keys += outside.count(b":")
        if items > most or keys > most_keys:
            return True
    return False


def has_too_many_values(body: bytes, most: int) -> bool:
    """Whether JSON has more than `most` commas, objects and lists outside of its strings: as long to be decoded."""
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= most:
        return False
    values = 0
    for outside in _outside_of_strings(body):
        values += outside.count(b",") + outside.count(b"{") + outside.count(b"[")
        if values > most:
            return True
    return False


def _outside_of_strings(body: bytes) -> Iterator[bytes]:
    """What is left of JSON without its strings, some of it at a time."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of quotes begins or ends a string
    inside = 0
    for start in range(0, len(body), _WINDOW_BYTES):
        pieces = body[start : start + _WINDOW_BYTES].split(b'"')
        yield b"".join(pieces[inside::2])
        inside ^= (len(pieces) - 1) & 1
