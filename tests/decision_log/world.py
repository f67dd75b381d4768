"""Requests that have ended, as the request path leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Ended, Outcome
from fairlead.decision_log.files import SCHEMA
from tests.core.world import World, request

USUAL: dict[str, Any] = {
    "at_s": 0.0, "session": None, "request": "r", "prompt": "p", "asked": "auto", "attempted": [], "language": "en",
    "bucket": "4K", "estimated_tokens": 1000, "prompt_tokens": 1000, "blocks": [[0, 2]], "block_tokens": 500.0,
    "model": "small", "endpoint": "10.0.0.1:1", "decision": "cost", "migration": None, "considered": 2,
    "expected_tokens": 0, "queued_tokens": 0, "rtt_ms": 1.0, "cost_ms": 100.0, "success_probability": 1.0,
    "code": 200, "evicted": False, "total_ms": 1000.0, "waited_ms": 0.0,
    "first_token_ms": None, "cached_tokens": None, "output_tokens": None, "question": None, "last": None,
}  # fmt: skip


def decisions(*rows: dict[str, Any]) -> pl.DataFrame:
    numbered = [{"at_s": float(number)} | row for number, row in enumerate(rows)]
    return pl.DataFrame([USUAL | row for row in numbered], schema=SCHEMA)


MODELS = ("small", "large")


class Pool(World):
    """One endpoint of each of MODELS."""

    def __init__(self) -> None:
        super().__init__()
        for number, model in enumerate(MODELS):
            self.endpoint(f"10.0.0.{number}:1", model)

    def ended(
        self,
        model: str = "any",
        *,
        prefix: Sequence[int] = (),
        outcome: Outcome | None = None,
        request_id: bytes = b"id-1",
        **facts: Any,
    ) -> Ended:
        """A request that took a second, unless said otherwise."""
        asked = msgspec.structs.replace(request(model, **facts), prefix=tuple(prefix), block_tokens=120.0)
        in_flight = self.router.admit(asked)
        assert isinstance(in_flight, InFlight)
        in_flight.withdraw(0.0)
        decision = in_flight.decision
        return Ended(asked, decision, outcome or Outcome(200, 1000.0), decision.addresses[0], request_id, 0.0, 1.0)
