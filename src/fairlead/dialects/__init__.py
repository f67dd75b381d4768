"""What each kind of engine looks like from outside, one file a dialect.

To add one, write a module here with a `DIALECT = Dialect(...)`; its name is then one that a configuration may give as
`engine`, `fairlead up` recognises it, and its metrics are read. Nothing else has to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from fairlead.dialects.dialect import Dialect, Gift, KvConnector, KvPublisher, Reading, ServerInfo
from fairlead.dialects.models_page import MOST_CARDS, ModelCard, is_name, read_models

__all__ = [
    "DEFAULT",
    "DIALECTS",
    "MOST_CARDS",
    "Dialect",
    "Gift",
    "KvConnector",
    "KvPublisher",
    "ModelCard",
    "Reading",
    "ServerInfo",
    "dialect_called",
    "is_name",
    "owner_is",
    "read_models",
    "titles",
]

DEFAULT: Final = "vllm"


def _each() -> Iterable[Dialect]:
    for module in iter_modules(__path__):
        dialect = getattr(import_module(f"{__name__}.{module.name}"), "DIALECT", None)
        if dialect is not None:
            yield dialect


DIALECTS: Final[Mapping[str, Dialect]] = {dialect.name: dialect for dialect in sorted(_each(), key=lambda d: d.name)}


def dialect_called(name: str) -> Dialect:
    """Raises ValueError, with what to write instead, for a name that is unknown."""
    dialect = DIALECTS.get(name)
    if dialect is None:
        near = get_close_matches(name, DIALECTS, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else "."
        raise ValueError(f'no kind of engine is called "{name}"{hint} Known names: {", ".join(DIALECTS)}')
    return dialect


def owner_is(owner: str) -> Dialect:
    """The dialect of an engine whose models are `owned_by` this; others that speak OpenAI's API pass for `DEFAULT`."""
    return next((dialect for dialect in DIALECTS.values() if dialect.owner == owner), DIALECTS[DEFAULT])


def titles() -> str:
    """For sentences: all that are known."""
    return " or ".join(dialect.title for dialect in DIALECTS.values())
