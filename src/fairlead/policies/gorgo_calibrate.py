"""gorgo_calibrate: GORGO's score in milliseconds, by rates fitted to the first tokens of finished requests.

rtt_weight * rtt_ms + prefill_rate * uncached + queue_rate * queue_weight * queued tokens, least wins. Source: policy
`gorgo-2d` of `gorgo-lb` 0.2.0 with its `calibrate` mode: one least-squares fit, TTFT = intercept of the replica +
prefill_rate * uncached + queue_rate * queued, over all requests since the start. The two rates belong to all replicas;
only the intercept, which routing does not use, is a replica's own. The package only warns of a negative rate; here it
is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Decision, Outcome, Policy, Ranking
from fairlead.core.ranking import least_first
from fairlead.policies.registry import Rule, register

_LEAST_DETERMINANT = 1e-9  # relative: below it the two counts rise and fall together


@register("gorgo_calibrate")
class GorgoCalibrate(Rule, frozen=True):
    rtt_weight: Annotated[float, Meta(ge=0)] = 1.0
    queue_weight: Annotated[float, Meta(ge=0)] = 1.0
    prefill_rate: Annotated[float, Meta(ge=0)] = 1.0  # ms a token; these two until enough requests have ended
    queue_rate: Annotated[float, Meta(ge=0)] = 1.0
    report_every: Annotated[int, Meta(ge=1)] = 32  # outcomes

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        rtt_weight, prefill_ms, queue_ms = self.rtt_weight, self.prefill_rate, self.queue_rate * self.queue_weight

        def cost(c: Candidate) -> float:
            return rtt_weight * c.rtt_ms + prefill_ms * c.uncached_tokens + queue_ms * c.inflight_prompt_tokens

        return Ranking(least_first(candidates, cost))

    def tuner(self, rng: Random) -> Calibrating:
        return Calibrating(self)


class Rates:
    """The fit, kept as sums: over all requests, and over those of each replica to take its intercept out."""

    def __init__(self) -> None:
        self.samples = 0
        self._sums = [0.0] * 5  # of uncached^2, queued^2, uncached * queued, uncached * TTFT, queued * TTFT
        self._of: dict[str, list[float]] = {}  # by replica: samples, sums of uncached, queued and TTFT

    def add(self, address: str, uncached_tokens: int, queued_tokens: int, ttft_ms: float) -> None:
        u, q, y = float(max(1, uncached_tokens)), float(queued_tokens), ttft_ms
        self.samples += 1
        self._sums = [a + b for a, b in zip(self._sums, (u * u, q * q, u * q, u * y, q * y), strict=True)]
        of = self._of.get(address, [0.0] * 4)
        self._of[address] = [a + b for a, b in zip(of, (1.0, u, q, y), strict=True)]

    def fitted(self) -> tuple[float, float] | None:
        """Prefill and queue rate in ms a token; None of too few samples, or where they cannot be told apart."""
        if self.samples < len(self._of) + 4:
            return None
        uu, qq, uq, uy, qy = self._sums
        for n, u, q, y in self._of.values():
            uu, qq, uq, uy, qy = uu - u * u / n, qq - q * q / n, uq - u * q / n, uy - u * y / n, qy - q * y / n
        determinant = uu * qq - uq * uq
        if determinant <= _LEAST_DETERMINANT * uu * qq:
            return None
        return (uy * qq - qy * uq) / determinant, (qy * uu - uy * uq) / determinant


class Calibrating:
    """The mutable state that a frozen `GorgoCalibrate` cannot hold."""

    def __init__(self, rule: GorgoCalibrate) -> None:
        self._rule = rule
        self.rates = Rates()

    def observe(self, decision: Decision, outcome: Outcome, decided: int, now_s: float) -> Policy | None:
        if outcome.first_token_ms is None or not decision.best:
            return None
        at = decision.best[0].candidate
        self.rates.add(at.address, at.uncached_tokens, at.inflight_prompt_tokens, outcome.first_token_ms)
        if self.rates.samples % self._rule.report_every:
            return None
        found = self.rates.fitted()
        if found is None:
            return None
        rates = {name: rate for name, rate in zip(("prefill_rate", "queue_rate"), found, strict=True) if rate > 0}
        self._rule = msgspec.structs.replace(self._rule, **rates)
        return self._rule
