"""A router with one endpoint, whose requests take as long as a function of the weights that routed them says."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Final

from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Decision, Outcome
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.policies import build_policy
from fairlead.tuning.online import OnlineTuner, TunerSettings
from fairlead.tuning.weights import BOXES
from tests.core.world import make_endpoint, request

SMALL: Final = TunerSettings(window=40, wash_out=10, warm_up=20)
# Of the policy and the request's number: time to the end, that and to the first token, or all there is to tell.
Times = Callable[[Any, int], float | tuple[float, float] | Outcome]


class Traffic:
    """Requests one every `gap_s`, each of which ends when its time has passed."""

    def __init__(self, policy: Any, times_ms: Times, *, gap_s: float = 0.01) -> None:
        self.router = Router(Pool([make_endpoint("a:1", "m")], {}), policy, fallbacks=0, rng=Random(0))
        self.times_ms = times_ms
        self.now_s = 0.0
        self.routed_by: dict[int, Any] = {}
        self._gap_s = gap_s
        self._running: list[tuple[float, int, Decision, Outcome]] = []

    @property
    def policy(self) -> Any:
        return self.router.policy

    def run(self, requests: int, code: int = 200) -> None:
        for _ in range(requests):
            self.now_s += self._gap_s
            self._end_until(self.now_s)
            in_flight = self.router.admit(request("m"), now_s=self.now_s)
            assert isinstance(in_flight, InFlight)
            decision = in_flight.decision
            in_flight.withdraw(self.now_s)  # nothing here depends on load; how it ends is told below
            self.routed_by[decision.number] = self.policy
            reported = self.times_ms(self.policy, decision.number)
            if isinstance(reported, Outcome):
                outcome = reported
            else:
                outcome = Outcome(code, *(reported if isinstance(reported, tuple) else (reported, reported)))
            heapq.heappush(self._running, (self.now_s + outcome.total_ms / 1e3, decision.number, decision, outcome))

    def _end_until(self, now_s: float) -> None:
        while self._running and self._running[0][0] <= now_s:
            ended_s, _, decision, outcome = heapq.heappop(self._running)
            self.router.feedback(decision, outcome, ended_s)


def tuned(
    times_ms: Times, settings: TunerSettings = SMALL, *, seed: int = 0, apply: bool = True, gap_s: float = 0.01
) -> tuple[Traffic, OnlineTuner]:
    """Traffic of `fairlead`, whose weights are tuned from 1 and 1."""
    policy = build_policy("fairlead", {})
    tuner = OnlineTuner(policy, BOXES["fairlead"], Random(seed), settings, apply=apply)
    traffic = Traffic(policy, times_ms, gap_s=gap_s)
    traffic.router.use(policy, tuner)
    return traffic, tuner


def hillclimbing(times_ms: Times, *, gap_s: float = 0.01, **parameters: Any) -> Traffic:
    """Traffic of the published tuner."""
    return Traffic(build_policy("gorgo_hillclimb", parameters), times_ms, gap_s=gap_s)
