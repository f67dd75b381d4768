"""`grpc-timeout`: a number of at most eight digits and its unit."""

from __future__ import annotations

from typing import Final

_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MOST_DIGITS: Final = 8


def timeout_s(text: bytes) -> float | None:
    """None for what is not a timeout."""
    number, unit = text[:-1], _SECONDS.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > _MOST_DIGITS:
        return None
    return int(number) * unit
