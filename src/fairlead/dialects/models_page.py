"""What an engine's `/v1/models` lists, as requests must name it."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.dialects.dialect import Dialect


class ModelCard(msgspec.Struct, frozen=True, gc=False):
    """A model or adapter. `name` is what a request says to get it; `parent` is an adapter's model."""

    name: str
    owner: str
    parent: str | None
    max_model_len: int | None


def read_models(page: Any, dialect: Dialect) -> tuple[ModelCard, ...]:
    """The cards of a decoded page, in its order; what is not one is left out. Never raises."""
    listed = page.get("data") if isinstance(page, dict) else None
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    names = {name for card in cards if isinstance(name := card.get("id"), str)}
    return tuple(_card(card, names, dialect) for card in cards if isinstance(card.get("id"), str))


def _card(card: dict[str, Any], names: set[str], dialect: Dialect) -> ModelCard:
    name, parent, length = card["id"], card.get("parent"), card.get("max_model_len")
    if not isinstance(parent, str) or parent == name or parent not in names:  # a model may name what it was tuned from
        parent = None
    if parent is not None and dialect.adapter_after_base:
        name = f"{parent}:{name}"
    return ModelCard(name, str(card.get("owned_by")), parent, length if type(length) is int and length > 0 else None)
