"""The fields of a multipart form, by where they stand: uploads of audio and images name their model in one of them."""

from __future__ import annotations

import re
from typing import Final

from fairlead.api.spans import Span

MOST_PARTS: Final = 64
_MOST_HEADER_BYTES: Final = 4096  # of one part
_BOUNDARY: Final = re.compile(rb'boundary=(?:"([^"\r\n]{1,200})"|([^;,\s"]{1,200}))', re.IGNORECASE)
_NAME: Final = re.compile(rb'\bname=(?:"([^"\r\n]{0,256})"|([^;\s"]{1,256}))', re.IGNORECASE)


def field_spans(body: bytes, content_type: bytes) -> list[tuple[str, Span]] | None:
    """Name and span of each field's value, in order; None if it is no form, or has over MOST_PARTS fields.

    The time is that of one search for the boundary, so a long upload costs little.
    """
    written = _BOUNDARY.search(content_type)
    if written is None:
        return None
    boundary = b"--" + (written.group(1) or written.group(2))
    fields: list[tuple[str, Span]] = []
    start = 0 if body.startswith(boundary) else body.find(b"\r\n" + boundary) + 2
    if start == 1:  # not found
        return None
    while True:
        start += len(boundary)
        if body.startswith(b"--", start):
            return fields
        head_end = body.find(b"\r\n\r\n", start, start + _MOST_HEADER_BYTES)
        end = body.find(b"\r\n" + boundary, max(start, head_end + 2))
        if head_end < 0 or end < 0 or len(fields) == MOST_PARTS:
            return None
        name = _NAME.search(body, start, head_end)
        if name is not None:
            value_start = head_end + 4
            fields.append(
                ((name.group(1) or name.group(2) or b"").decode("latin-1"), (value_start, max(value_start, end)))
            )
        start = end + 2
