"""gorgo_hillclimb: `gorgo` with its published tuner on both weights. Source: GORGO, section 3.

A baseline, found by its entry point like any external policy: the tuner has the faults that `docs/tune.md` lists, and
its box is the paper's. It learns from answers observed in full (`observe.answers_per_second`): from their times to the
first token, as published, or with `objective: e2e` from their whole times, the package's `neg_p95_e2e`.
"""

from __future__ import annotations

from random import Random
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from fairlead.core.policy import Decision, Outcome, Policy
from fairlead.policies.gorgo import Gorgo
from fairlead.tools.tune.published import HillClimb
from fairlead.tuning.weights import Box

BOX: Final[Box] = {"rtt_weight": (0.05, 2.0), "queue_weight": (0.05, 0.5)}


class GorgoHillclimb(Gorgo, frozen=True):
    rtt_weight: Annotated[float, Meta(ge=BOX["rtt_weight"][0], le=BOX["rtt_weight"][1])] = 0.5
    queue_weight: Annotated[float, Meta(ge=BOX["queue_weight"][0], le=BOX["queue_weight"][1])] = 0.1
    window: Annotated[int, Meta(ge=1, le=100_000)] = 128  # outcomes
    report_every: Annotated[int, Meta(ge=1)] = 32  # outcomes
    objective: Literal["ttft", "e2e"] = "ttft"  # its p95

    def tuner(self, rng: Random) -> Climbing:
        return Climbing(self, rng)


class Climbing:
    """The mutable state that a frozen `GorgoHillclimb` cannot hold."""

    def __init__(self, rule: GorgoHillclimb, rng: Random) -> None:
        self._rule = rule
        start = {name: getattr(rule, name) for name in BOX}
        self.climb = HillClimb(start, BOX, rng, window=rule.window, report_every=rule.report_every)

    def observe(
        self,
        decision: Decision,  # noqa: ARG002
        outcome: Outcome,
        decided: int,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> Policy | None:
        if outcome.first_token_ms is None:
            return None
        if not self.climb.observed(outcome.total_ms if self._rule.objective == "e2e" else outcome.first_token_ms):
            return None
        return msgspec.structs.replace(self._rule, **self.climb.weights)
