"""Requests that have ended, as the request path leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.core.facts import RequestFacts
from fairlead.core.feedback import Outcome
from fairlead.core.router import Decision
from tests.core.world import World, request

MODELS = ("small", "large")


class Pool(World):
    """One endpoint of each of MODELS."""

    def __init__(self) -> None:
        super().__init__()
        for number, model in enumerate(MODELS):
            self.endpoint(f"10.0.0.{number}:1", model)

    def ended(
        self, model: str = "any", *, prefix: Sequence[int] = (), outcome: Outcome | None = None, **facts: Any
    ) -> tuple[RequestFacts, Decision, Outcome]:
        """A request that took a second, unless said otherwise."""
        asked = msgspec.structs.replace(request(model, **facts), prefix=tuple(prefix), block_tokens=120.0)
        decision = self.router.decide(asked)
        assert isinstance(decision, Decision)
        decision.ticket.release()
        return asked, decision, outcome or Outcome(200, 1000.0)
