"""Durations in headers, as Go writes them: `2s`, `500ms`, `1m30s`."""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s|us|ns)")
_MOST_BYTES: Final = 64
_SECONDS: Final = {b"h": 3600.0, b"m": 60.0, b"s": 1.0, b"ms": 1e-3, b"us": 1e-6, b"ns": 1e-9}


def duration_s(text: bytes) -> float | None:
    """In seconds; None if it is no duration or not positive."""
    if len(text) > _MOST_BYTES:
        return None
    total_s, end = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != end:
            return None
        total_s += float(part[1]) * _SECONDS[part[2]]
        end = part.end()
    return total_s if end == len(text) and total_s > 0 else None
