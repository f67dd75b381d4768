"""How a replica's p95 latency grows with its load: simulated at a few loads, interpolated between them.

A replica (one pipeline slot of it) is simulated by `simulate.Engine`. Arrivals are the same random draws for every
replica and load, so that differences between deployments are not chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from fairlead.statistics import quantile
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_request import EngineRequest, EventKind
from fairlead.tools.simulate.parameters import EngineParameters

Floats = NDArray[np.float64]

# Shares of the replica's capacity. The first is an idle replica, the last the most that a plan puts on one.
_LOADS = (0.02, 0.35, 0.6, 0.75, 0.85, 0.92)
_FEWEST_REQUESTS, _MOST_REQUESTS = 400, 800
_WARM_UP = 0.2  # of the requests: the replica starts empty
_SEED = 20


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and answer tokens of the requests that reach a stage, in a fixed order."""

    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


def latencies_ms(parameters: EngineParameters, requests: Sequence[tuple[int, int]], arrivals_ms: Floats) -> Floats:
    """From arrival to last token, for each of `requests` (prompt, answer tokens); arrivals must be in order."""
    engine = Engine(parameters)
    finished_ms = np.zeros(len(requests))
    for index, ((prompt, output), arrival_ms) in enumerate(zip(requests, arrivals_ms.tolist(), strict=True)):
        _step_until(engine, arrival_ms, finished_ms)
        engine.submit(EngineRequest(str(index), prompt, output), arrival_ms)
    _step_until(engine, np.inf, finished_ms)
    return finished_ms - arrivals_ms


def _step_until(engine: Engine, end_ms: float, finished_ms: Floats) -> None:
    while (now_ms := engine.next_step_ms()) is not None and now_ms <= end_ms:
        for event in engine.step(now_ms):
            if event.kind is EventKind.FINISHED:
                finished_ms[int(event.request_id)] = now_ms


@dataclass(frozen=True, slots=True)
class Curve:
    """`p95_ms[k]` at `rates_per_ms[k]`, both growing; no plan loads the replica beyond the last rate."""

    rates_per_ms: Floats
    p95_ms: Floats
    most_per_ms: float  # throughput of a replica that is never idle

    def rate_within(self, limits_ms: Floats) -> Floats:
        """The most requests a millisecond with a p95 within each of `limits_ms`; 0 if an idle replica is slower."""
        return np.interp(limits_ms, self.p95_ms, self.rates_per_ms, left=0.0)


def simulate_curve(parameters: EngineParameters, lengths: Lengths) -> Curve:
    prompt, output = float(np.mean(lengths.prompt_tokens)), float(np.mean(lengths.output_tokens))
    most_per_ms = most_requests_per_ms(parameters, prompt, output)
    p95_ms = []
    for load in _LOADS:
        rate = load * most_per_ms
        count = int(min(_MOST_REQUESTS, _FEWEST_REQUESTS + 4 * rate * _time_ms(parameters, prompt, output, rate)))
        seen_ms = latencies_ms(parameters, _repeated(lengths, count), arrivals_ms(rate, count))
        p95_ms.append(quantile(seen_ms[int(_WARM_UP * count) :].tolist(), 0.95))
    rising = np.maximum.accumulate(np.array(p95_ms)) * (1 + 1e-9 * np.arange(len(p95_ms)))
    return Curve(np.array(_LOADS) * most_per_ms, rising, most_per_ms)


def arrivals_ms(rate_per_ms: float, count: int) -> Floats:
    """Poisson arrivals; another rate stretches the same draws."""
    rng = np.random.default_rng(_SEED)
    return np.cumsum(rng.exponential(1.0, count)) / rate_per_ms


def most_requests_per_ms(parameters: EngineParameters, prompt_tokens: float, output_tokens: float) -> float:
    """Throughput with as many requests at once as memory and the engine allow.

    A request costs its prefill, its part of each step that it decodes in, and its own work in those steps.
    """
    at_once = min(parameters.max_num_seqs, max(1.0, _kv_tokens(parameters) / (prompt_tokens + output_tokens / 2)))
    step_ms = parameters.step_overhead_ms + parameters.decode_ms_per_step
    decode_ms = output_tokens * (step_ms / at_once + parameters.decode_ms_per_sequence)
    return 1.0 / max(prompt_tokens * parameters.prefill_ms_per_token + decode_ms, 1e-9)


def _time_ms(parameters: EngineParameters, prompt_tokens: float, output_tokens: float, rate_per_ms: float) -> float:
    """Mean time in the replica, roughly: decoding is slowed by prefills and by other answers in the batch."""
    prefill_ms = prompt_tokens * parameters.prefill_ms_per_token
    alone_ms = output_tokens * (parameters.step_overhead_ms + parameters.decode_ms_per_step) + prefill_ms
    busy = rate_per_ms * (prefill_ms + output_tokens * parameters.decode_ms_per_sequence)
    return alone_ms / max(1 - busy, 0.05)


def _kv_tokens(parameters: EngineParameters) -> int:
    return parameters.num_blocks * parameters.block_size


def _repeated(lengths: Lengths, count: int) -> list[tuple[int, int]]:
    """`count` requests with the same share of each; every round in another order."""
    rng = Random(_SEED)
    each = list(zip(lengths.prompt_tokens, lengths.output_tokens, strict=True))
    drawn: list[tuple[int, int]] = []
    while len(drawn) < count:
        drawn += rng.sample(each, len(each))
    return drawn[:count]
