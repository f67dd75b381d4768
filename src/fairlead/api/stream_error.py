"""A stream that is an error: status 200, as its headers were sent before the engine knew, and the error as an event.

SGLang refuses so with a full queue (`--max-queued-requests`): `data: {"error": {"code": 503, ...}}`. An answer that has
begun and then fails is another matter; only the first part of a stream is looked at.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

UNAVAILABLE: Final = 503
_MOST_BYTES: Final = 16 * 1024  # of a part; a longer one is no refusal
_STATUS: Final = {"overloaded_error": UNAVAILABLE, "rate_limit_error": 429}  # Anthropic's types
_UNKNOWN_STATUS: Final = 500
_decode = msgspec.json.Decoder().decode


class StreamError(NamedTuple):
    """The HTTP status that the stream should have had, and the body: JSON, as the engine wrote it."""

    status: int
    body: bytes


def stream_error(first_part: bytes) -> StreamError | None:
    """None if the first part of a stream is no error. Never raises."""
    if b'"error"' not in first_part or len(first_part) > _MOST_BYTES:
        return None
    for line in first_part.splitlines():
        if line.startswith(b"data:") and b'"error"' in line:
            try:
                event = _decode(line[5:])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            error = event.get("error") if isinstance(event, dict) else None
            if error:
                return StreamError(_status(error), line[5:].strip())
    return None


def _status(error: Any) -> int:
    if not isinstance(error, dict):
        return _UNKNOWN_STATUS
    code, kind = error.get("code"), error.get("type")
    if type(code) is int and 400 <= code < 600:
        return code
    return _STATUS.get(kind, _UNKNOWN_STATUS) if isinstance(kind, str) else _UNKNOWN_STATUS
