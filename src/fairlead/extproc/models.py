"""`GET /v1/models`: the pool's models and the routes, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from fairlead.core.pool import Pool
from fairlead.extproc import refusals
from fairlead.extproc.refusals import HttpAnswer

_PATH = "/v1/models"


def models_answer(path: str, pool: Pool) -> HttpAnswer | None:
    """The list, or one model's entry, or 404 for an unknown one; None for any other path."""
    path = path.partition("?")[0]
    if path == _PATH:
        return refusals.json_answer({"object": "list", "data": [_entry(name, pool) for name in _names(pool)]})
    if path.startswith(f"{_PATH}/"):
        name = path.removeprefix(f"{_PATH}/")
        return refusals.json_answer(_entry(name, pool)) if name in _names(pool) else refusals.unknown_model(name)
    return None


def _names(pool: Pool) -> tuple[str, ...]:
    return (*pool.models, *pool.routes)


def _entry(name: str, pool: Pool) -> dict[str, Any]:
    lengths = [e.max_model_len for e in pool.endpoints if e.model in pool.routes.get(name, (name,)) and e.max_model_len]
    entry = {"id": name, "object": "model", "created": 0, "owned_by": "fairlead", "root": name, "parent": None}
    return entry | ({"max_model_len": min(lengths)} if lengths else {})
