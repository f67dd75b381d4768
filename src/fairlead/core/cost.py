"""The cost of an endpoint for a request, in milliseconds of expected time to a correct answer.

L = rtt_weight * rtt + prefill_ms_per_token * (uncached + queue_weight * queued) + decode
cost = L / Q * retry_penalty ^ attempts
"""

from __future__ import annotations

import msgspec


class CostTerms(msgspec.Struct, frozen=True, gc=False):
    """Expected time to a correct answer at one endpoint, split by cause.

    Source: GORGO's score with every term in milliseconds, LAAR's success probability below it.
    """

    rtt_ms: float
    prefill_ms: float
    queue_ms: float
    decode_ms: float
    success_probability: float
    attempts: int
    retry_penalty: float

    def total_ms(self) -> float:
        latency_ms = self.rtt_ms + self.prefill_ms + self.queue_ms + self.decode_ms
        return latency_ms / self.success_probability * self.retry_penalty**self.attempts
