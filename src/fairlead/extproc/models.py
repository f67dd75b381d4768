"""`GET /v1/models`: the pool's models and the routes, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from fairlead.api import refusals
from fairlead.api.paths import MODELS, plain_path
from fairlead.api.refusals import HttpAnswer
from fairlead.core.pool import Pool


def models_answer(path: str, pool: Pool) -> HttpAnswer | None:
    """The list, or one model's entry, or 404 for an unknown one; None for any other path."""
    path = plain_path(path)  # clients escape the slash of `organisation/model`
    if path == MODELS:
        return refusals.json_answer({"object": "list", "data": [_entry(name, pool) for name in _names(pool)]})
    if path.startswith(f"{MODELS}/"):
        name = path.removeprefix(f"{MODELS}/")
        return refusals.json_answer(_entry(name, pool)) if name in _names(pool) else refusals.unknown_model(name)
    return None


def _names(pool: Pool) -> tuple[str, ...]:
    return (*pool.models, *sorted(pool.names), *pool.routes)


def _entry(name: str, pool: Pool) -> dict[str, Any]:
    serving = pool.serving(name)
    lengths = [e.max_model_len for e in serving if e.max_model_len]
    parent = serving[0].model if name in pool.adapters and serving else None
    entry = {"id": name, "object": "model", "created": 0, "owned_by": "fairlead", "root": name, "parent": parent}
    return entry | ({"max_model_len": min(lengths)} if lengths else {})
