"""The table of a cascade's sample: one JSON line for each request and model.

    {"request": "q1", "model": "small", "prompt_tokens": 812, "output_tokens": 64, "latency_ms": 930.5, "score": 85}

`fairlead plan profile` writes it before anything runs, and the sidecar, from a share of its traffic, while it serves.
`quality`, if given, is what counts for the user (an exact match, say); `score` is the judge's grade.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fairlead.errors import UserError


class ProfileRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One model's answer to one request."""

    request: str
    model: str
    prompt_tokens: int
    output_tokens: int
    latency_ms: float
    score: float
    quality: float | None = None


def read_rows(path: Path) -> list[ProfileRow]:
    """Raises UserError with the file and line of what cannot be used."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); `fairlead plan profile` writes it") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=ProfileRow)
        except msgspec.DecodeError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        except UnicodeDecodeError:
            raise UserError(f"{path}:{number}: is not UTF-8 text; save the file as UTF-8") from None
        problem = _problem(row)
        if problem:
            raise UserError(f"{path}:{number}: {problem}")
        rows.append(row)
    return rows


def _problem(row: ProfileRow) -> str | None:
    if row.prompt_tokens < 1 or row.output_tokens < 0:
        return "a request needs at least one prompt token and no negative answer"
    if not 0 <= row.latency_ms < float("inf"):
        return f"latency_ms is {row.latency_ms}; it must be 0 or more"
    for name, value in (("score", row.score), ("quality", row.quality)):
        if value is not None and not 0 <= value <= 100:
            return f"{name} is {value:g}; it must be 0 to 100"
    return None
