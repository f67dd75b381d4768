"""What a server's own pages say that it is: its version, its models and adapters, what it takes and what it refuses.

A page that cannot be used says nothing. When the pages are asked for is in `engines.watch`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.reported import EngineIdentity
from fairlead.dialects import Dialect, owner_is, read_models
from fairlead.engines.ask import Answer


def read_identity(dialect: Dialect, info: Answer, models: Answer, model: str) -> EngineIdentity:
    """The identity given by what the server says of itself and by `/v1/models`; what they omit stays unknown.

    The context length is `model`'s.
    """
    said = dialect.read_info(_object(info))
    identity = EngineIdentity(
        version=said.version,
        serves_alone=said.role == "plain",
        max_queued_requests=said.max_queued_requests,
        caches_prefixes=said.caches_prefixes,
    )
    return with_models(identity, dialect, models, model)


def with_models(identity: EngineIdentity, dialect: Dialect, page: Answer, model: str) -> EngineIdentity:
    """`identity` with what a page of models lists; `model`, if it is there, comes first."""
    listed = read_models(_object(page), dialect)
    owner = next((card.owner for card in listed if card.parent is None), None)
    cards = sorted(listed, key=lambda card: card.name != model)
    lengths = [card.max_model_len for card in cards if card.max_model_len is not None]
    return msgspec.structs.replace(
        identity,
        models=tuple(card.name for card in cards),
        adapters=tuple(card.name for card in cards if card.parent is not None),
        max_model_len=lengths[0] if lengths else None,
        engine="" if owner is None else owner_is(owner).name,
    )


def _object(answer: Answer) -> dict[Any, Any]:
    try:
        document = msgspec.json.decode(answer.body) if answer.status == 200 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
