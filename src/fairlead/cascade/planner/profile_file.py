"""The table that `fairlead plan profile` writes: one JSON line for each request and model.

    {"request": "q1", "model": "small", "prompt_tokens": 812, "output_tokens": 64, "latency_ms": 930.5, "score": 85}

`quality`, where it is there, is what counts for the user (an exact match, say); `score` is what the judge sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fairlead.cascade.planner.routing import Profile
from fairlead.errors import UserError

_FEWEST_REQUESTS = 20  # fewer say nothing of a p95


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


def make_profile(rows: Sequence[ProfileRow], models: Sequence[str], source: str) -> Profile:
    """The sample of requests that every one of `models` answered. Raises UserError where that is too little."""
    answers: dict[str, dict[str, ProfileRow]] = {}
    for row in rows:
        answers.setdefault(row.request, {})[row.model] = row
    seen = {row.model for row in rows}
    missing = [model for model in models if model not in seen]
    if missing:
        raise UserError(
            f"{source}: no row of the model {missing[0]}; profile it too, or leave it out of the cascade "
            f"(there are: {', '.join(sorted(seen)) or 'none'})"
        )
    whole = [each for each in answers.values() if all(model in each for model in models)]
    if len(whole) < _FEWEST_REQUESTS:
        raise UserError(
            f"{source}: {len(whole)} of {len(answers)} requests were answered by all of {', '.join(models)}; "
            f"at least {_FEWEST_REQUESTS} are needed: run `fairlead plan profile` again, it goes on where it stopped"
        )

    def table(value: Any) -> Any:
        return np.array([[value(each[model]) for model in models] for each in whole], dtype=float)

    return Profile(
        models=tuple(models),
        prompt_tokens=table(lambda row: row.prompt_tokens).max(axis=1),
        output_tokens=table(lambda row: row.output_tokens),
        score=table(lambda row: row.score),
        quality=table(lambda row: row.score if row.quality is None else row.quality),
        latency_ms=table(lambda row: row.latency_ms),
    )
