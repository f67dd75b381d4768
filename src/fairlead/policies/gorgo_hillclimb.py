"""gorgo_hillclimb: `gorgo` while its published tuner climbs over both weights. Source: GORGO, section 3.

A baseline: the tuner has the faults that `docs/tune.md` lists, and its box is the paper's. It learns from times to the
first token; behind Envoy these are known of the answers that are observed in full (`observe.messages_per_second`).
"""

from __future__ import annotations

from random import Random
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fairlead.core.evolution import Box, HillClimb
from fairlead.core.feedback import Outcome
from fairlead.core.ranking import Policy
from fairlead.core.router import Decision
from fairlead.policies.gorgo import Gorgo
from fairlead.policies.registry import register

BOX: Final[Box] = {"rtt_weight": (0.05, 2.0), "queue_weight": (0.05, 0.5)}


@register("gorgo_hillclimb")
class GorgoHillclimb(Gorgo, frozen=True):
    rtt_weight: Annotated[float, Meta(ge=BOX["rtt_weight"][0], le=BOX["rtt_weight"][1])] = 0.5
    queue_weight: Annotated[float, Meta(ge=BOX["queue_weight"][0], le=BOX["queue_weight"][1])] = 0.1
    window: Annotated[int, Meta(ge=1, le=100_000)] = 128  # outcomes
    report_every: Annotated[int, Meta(ge=1)] = 32  # outcomes

    def tuner(self, rng: Random) -> Climbing:
        return Climbing(self, rng)


class Climbing:
    """What a `GorgoHillclimb` may not keep itself."""

    def __init__(self, rule: GorgoHillclimb, rng: Random) -> None:
        self._rule = rule
        start = {name: getattr(rule, name) for name in BOX}
        self.climb = HillClimb(start, BOX, rng, window=rule.window, report_every=rule.report_every)

    def heard(
        self,
        decision: Decision,  # noqa: ARG002
        outcome: Outcome,
        decided: int,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> Policy | None:
        if outcome.first_token_ms is None or not self.climb.heard(outcome.first_token_ms):
            return None
        return msgspec.structs.replace(self._rule, **self.climb.weights)
