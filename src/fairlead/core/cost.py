"""The cost of an endpoint for a request, in milliseconds of expected time to a correct answer.

cost = L / Q * retry_penalty ^ attempts

L is the expected latency; Q the probability that the model's answer is correct. A policy whose L is linear in the
request's tokens declares `Prices`: these change with the endpoint and not with the request, so they can be kept.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.core.adapter_slots import AdapterNeed

Prices = tuple[float, float, float, float, float, float, float]
"""The prices of one endpoint at this moment, in ms: network, fixed, queue, prefill, contention, decode, network
spread.

L = network + fixed + queue + work * (prefill + delayed requests * contention) + output tokens * decode

Network, fixed and queue count once for a request; prefill for each token of the work that its uncached tokens are (see
`core.prefill_work`); contention for each of these and each request that it delays wherever it goes: those in flight
at the least loaded endpoint that the request may go to, and those to come (`core.congestion`); decode for each token of
the answer.
The spread is by how much the network's time may be too high, as measurements of it vary: see `ranking.in_order`.
"""


def latency_terms(
    prices: Prices, work_tokens: float, delayed_requests: float, output_tokens: float
) -> tuple[float, float, float, float, float]:
    """Network, fixed, prefill, queue and decoding, in ms: L at one endpoint in its terms."""
    network_ms, fixed_ms, queue_ms, prefill_ms, contention_ms, decode_ms, _ = prices
    prefill_ms += delayed_requests * contention_ms
    return network_ms, fixed_ms, work_tokens * prefill_ms, queue_ms, output_tokens * decode_ms


def adapter_ms(need: AdapterNeed, prefill_ms: float) -> float:
    """Until an adapter has a slot and is loaded; `prefill_ms` is what an uncached token costs, with contention."""
    return need.wait_ms + need.load_tokens * prefill_ms


def costs_ms(
    once_ms: Iterable[float],
    prefill_ms: Iterable[float],
    decode_ms: Iterable[float],
    work_tokens: Iterable[float],
    output_tokens: Iterable[float],
    factors: Iterable[float],
) -> list[float]:
    """The cost of many endpoints: `once_ms` is network, fixed and queue, `prefill_ms` includes contention.

    A policy's `rank` adds up in the same order, so that its costs are the same to the last bit.
    """
    return [
        (once + work * prefill + output * decode) * factor
        for once, prefill, decode, work, output, factor in zip(  # noqa: B905  (constants repeat forever)
            once_ms, prefill_ms, decode_ms, work_tokens, output_tokens, factors
        )
    ]


def contended_ms(
    prefill_ms: Iterable[float], contention_ms: Iterable[float], delayed_requests: float
) -> Iterable[float]:
    """What an uncached token costs that delays so many requests wherever it is computed."""
    if not delayed_requests:
        return prefill_ms
    return [prefill + delayed_requests * each for prefill, each in zip(prefill_ms, contention_ms, strict=True)]


def cost_factor(success_probability: float, retry_penalty: float, attempts: int) -> float:
    """What the latency is multiplied by: 1 / Q * retry_penalty ^ attempts."""
    return (retry_penalty**attempts if attempts else 1.0) / success_probability


def expected_ms(latency_ms: float, success_probability: float, retry_penalty: float, attempts: int) -> float:
    """Expected time to a correct answer. Source: LAAR's success probability below GORGO's score."""
    return latency_ms * cost_factor(success_probability, retry_penalty, attempts)


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
    adapter_ms: float = 0.0
    fixed_ms: float = 0.0  # of a request here, whatever its length

    def total_ms(self) -> float:
        latency_ms = self.rtt_ms + self.fixed_ms + self.prefill_ms + self.queue_ms + self.decode_ms + self.adapter_ms
        return expected_ms(latency_ms, self.success_probability, self.retry_penalty, self.attempts)
