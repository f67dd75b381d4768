"""Replace one top-level value of a JSON object in its bytes: nothing else of the body changes.

Re-serialising would alter key order, spacing, big integers and escapes of a body that is the client's.
"""

from __future__ import annotations

import re

import msgspec

_KEY = re.compile(rb'\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*:\s*', re.DOTALL)
_COMMA = re.compile(rb"\s*,")
_END = re.compile(rb"\s*\}\s*\Z")
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def replace_top_level(body: bytes, key: str, value: bytes) -> bytes | None:
    """`body`, a valid JSON object that has `key`, with that key's value replaced by the JSON text `value`.

    None if a top-level key is written twice: which of them an engine would believe is not ours to guess. The time is
    that of a scan without decoding, so a long body costs little wherever the key stands.
    """
    span = None
    cursor = body.index(b"{") + 1
    for position, (name, raw) in enumerate(_decode_fields(body).items()):
        if position:
            comma = _COMMA.match(body, cursor)
            cursor = comma.end() if comma else cursor
        written = _KEY.match(body, cursor)
        if written is None or _name(written.group(1)) != name:
            return None
        start = written.end()
        cursor = start + len(memoryview(raw))
        if name == key:
            span = start, cursor
    if span is None or not _END.match(body, cursor):
        return None
    return b"".join((body[: span[0]], value, body[span[1] :]))


def _name(written: bytes) -> str:
    if b"\\" in written:
        return msgspec.json.decode(b'"' + written + b'"', type=str)
    return written.decode()
