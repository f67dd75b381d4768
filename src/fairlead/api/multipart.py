"""The fields of a multipart form, by where they stand: uploads of audio and images name their model in one of them."""

from __future__ import annotations

import re
from typing import Final

from fairlead.api.spans import Span

MOST_PARTS: Final = 64
_MOST_HEADER_BYTES: Final = 4096  # of one part
_BOUNDARY: Final = re.compile(rb'boundary=(?:"([^"\r\n]{1,200})"|([^;,\s"]{1,200}))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"\r\ncontent-disposition:([^\r\n]*)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s"]*))')


def field_spans(body: bytes, content_type: bytes) -> list[tuple[str, Span]] | None:
    """Name and span of each field's value, in order; None if it is no form, or has over MOST_PARTS fields.

    None also where two readers could take it for two forms: a boundary, a disposition or a name that is there twice.

    The time is that of one search for the boundary, so a long upload costs little.
    """
    written = _BOUNDARY.findall(content_type)
    if len(written) != 1:
        return None
    boundary: bytes = b"--" + (written[0][0] or written[0][1])
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
        dispositions = _DISPOSITION.findall(body, start, head_end)
        if len(dispositions) != 1:
            return None
        parameters = [(key.lower(), quoted or bare) for key, quoted, bare in _PARAMETER.findall(dispositions[0])]
        names = [value for key, value in parameters if key == b"name"]
        is_coded = any(key.startswith(b"name*") for key, _ in parameters)  # another encoding, or in parts (RFC 2231)
        if is_coded or len(names) > 1 or b"\\" in b"".join(names):
            return None
        if names:
            value_start = head_end + 4
            fields.append((names[0].decode("latin-1"), (value_start, max(value_start, end))))
        start = end + 2
