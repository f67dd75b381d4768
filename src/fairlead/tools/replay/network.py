"""Round trips by region, as a series over time: measured ones from a file, one constant value, or drawn.

A request takes half of the round trip in force when it is sent, and its answer the other half. The router does not know
these values: it sees what its probes measured, some time ago.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.errors import UserError
from fairlead.tools.replay.lines import lines_of


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How KV travels between two engines."""

    setup_ms: float = 20.0
    bytes_per_token: float = 98_304.0  # of Qwen3-Coder-30B: EAR gives 3.3 GB for 33,600 tokens
    bytes_per_s: Annotated[float, Meta(gt=0)] = 10e9

    def takes_ms(self, tokens: int) -> float:
        return self.setup_ms + tokens * self.bytes_per_token / self.bytes_per_s * 1e3


class RttSeries:
    """Round trips in ms, each in force from its time on; after its end the series repeats."""

    def __init__(self, times_s: Sequence[float], rtts_ms: Sequence[float], period_s: float) -> None:
        self._times_s = list(times_s)
        self._rtts_ms = list(rtts_ms)
        self._period_s = period_s

    @property
    def constant(self) -> bool:
        return len(self._rtts_ms) == 1

    def at(self, now_ms: float) -> float:
        if len(self._rtts_ms) == 1:
            return self._rtts_ms[0]
        return self._rtts_ms[bisect_right(self._times_s, (now_ms / 1e3) % self._period_s) - 1]


def constant(rtt_ms: float) -> RttSeries:
    return RttSeries([0.0], [rtt_ms], math.inf)


def drawn(
    mean_ms: float, deviation_ms: float, rng: Random, *, period_s: float = 3600.0, step_s: float = 10.0
) -> RttSeries:
    """A series that wanders around `mean_ms` and returns within a minute or two, as round trips over the internet do.

    The logarithm is an autoregressive process (0.9 from step to step): never below 0, with rare long excursions.
    """
    sigma = math.sqrt(math.log(1 + (deviation_ms / mean_ms) ** 2))
    level = rng.gauss(0.0, sigma)
    times_s, rtts_ms = [], []
    for step in range(int(period_s / step_s)):
        times_s.append(step * step_s)
        rtts_ms.append(mean_ms * math.exp(level - sigma * sigma / 2))
        level = 0.9 * level + math.sqrt(1 - 0.9**2) * rng.gauss(0.0, sigma)
    return RttSeries(times_s, rtts_ms, period_s)


def read_series(path: Path) -> RttSeries:
    """A table with the columns `t_s` and `rtt_ms`. Raises UserError with the line that is wrong."""
    times_s: list[float] = []
    rtts_ms: list[float] = []
    for line in lines_of(path):
        at_s = line.number("t_s")
        if times_s and at_s <= times_s[-1]:
            line.refuse(f"t_s {at_s:g} is not after the row above")
        times_s.append(at_s)
        rtts_ms.append(line.number("rtt_ms"))
    if not times_s:
        raise UserError(f"{path}: no round trip in it")
    begin_s = times_s[0]
    times_s = [at_s - begin_s for at_s in times_s]
    return RttSeries(times_s, rtts_ms, times_s[-1] + (times_s[-1] / (len(times_s) - 1) if len(times_s) > 1 else 1.0))
