"""What an engine's `/v1/models` lists, as requests must name it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlead.dialects.dialect import Dialect

MOST_NAME_CHARACTERS: Final = 256  # a request for a longer one is refused
MOST_CARDS: Final = 4096  # of one engine


class ModelCard(msgspec.Struct, frozen=True, gc=False):
    """A model or adapter. `name` is what a request says to get it; `parent` is an adapter's model."""

    name: str
    owner: str
    parent: str | None
    max_model_len: int | None


def read_models(page: Any, dialect: Dialect) -> tuple[ModelCard, ...]:
    """The cards of a decoded page, in its order; what is not one, or not a name, is left out. Never raises."""
    listed = page.get("data") if isinstance(page, dict) else None
    listed = listed[:MOST_CARDS] if isinstance(listed, list) else []
    cards = [card for card in listed if isinstance(card, dict) and is_name(card.get("id"))]
    names = {card["id"] for card in cards}
    return tuple(_card(card, names, dialect) for card in cards)


def is_name(name: object) -> bool:
    """Whether a request can name a model so, and a header of its answer, too: Envoy refuses control characters."""
    return isinstance(name, str) and 0 < len(name) <= MOST_NAME_CHARACTERS and name.isprintable()


def _card(card: dict[str, Any], names: set[str], dialect: Dialect) -> ModelCard:
    name, parent, length = card["id"], card.get("parent"), card.get("max_model_len")
    if not isinstance(parent, str) or parent == name or parent not in names:  # a model may name what it was tuned from
        parent = None
    if parent is not None and dialect.adapter_after_base:
        name = f"{parent}:{name}"
    return ModelCard(name, str(card.get("owned_by")), parent, length if type(length) is int and length > 0 else None)
