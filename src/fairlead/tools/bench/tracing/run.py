"""The same load on sidecars that differ in tracing alone, in turns.

One of them has tracing off twice: what those two differ by is what this machine makes of nothing at all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import aiohttp
import msgspec

from fairlead.tools.bench.machine import Machine, this_machine
from fairlead.tools.bench.processes import addresses_of, child
from fairlead.tools.bench.through_envoy import Effort, Run, Shape
from fairlead.tools.bench.turns import Sections, in_turns, start
from fairlead.tools.bench.variants import Variant

OFF: Final = "off"
OFF_AGAIN: Final = "off, a second sidecar"
UNSAMPLED: Final = "on, none sampled"
ONE_PERCENT: Final = "on, 1 % sampled"
ALL: Final = "on, all sampled"
SAMPLES: Final = {OFF: None, OFF_AGAIN: None, UNSAMPLED: 0.0, ONE_PERCENT: 0.01, ALL: 1.0}
SHAPES: Final[tuple[Shape, ...]] = ("1 KB", "64 KB", "steady")

FULL: Final = Effort(rounds=9, saturated_s=2.0, steady_s=3.0)
QUICK: Final = Effort(rounds=2, saturated_s=0.5, steady_s=1.0)


class TracingReport(msgspec.Struct, frozen=True):
    """All of one run."""

    command: str
    seed: int
    machine: Machine
    load_average_after: float
    traced: dict[str, int]  # requests traced, by variant
    posts: int  # that the collector took
    runs: list[Run]


def steps(effort: Effort) -> int:
    return effort.rounds * len(SHAPES) * len(SAMPLES)


def run(command: str, seed: int, effort: Effort, advance: Callable[[], None]) -> TracingReport:
    """Measure; `advance` is called after each of `steps(effort)`."""
    machine = this_machine()
    runs, traced, posts = asyncio.run(_measure(effort, seed, advance))
    return TracingReport(command, seed, machine, os.getloadavg()[0], traced, posts, runs)


async def _measure(effort: Effort, seed: int, advance: Callable[[], None]) -> tuple[list[Run], dict[str, int], int]:
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(child("fairlead.tools.bench.tracing.collector"))
        (collector,) = await addresses_of(receiver)
        up = await start(stack, {name: _sections(collector, sample) for name, sample in SAMPLES.items()})
        runs = await in_turns(up, SHAPES, effort, seed, advance)
        async with aiohttp.ClientSession() as session:
            traced = {each.name: await _traced(session, each) for each in up.variants}
            async with session.get(f"http://{collector}/received") as response:
                return runs, traced, int(await response.json())


def _sections(collector: str, sample: float | None) -> Sections:
    return {} if sample is None else {"tracing": {"endpoint": f"http://{collector}", "sample": sample}}


async def _traced(session: aiohttp.ClientSession, variant: Variant) -> int:
    async with session.get(f"http://{variant.admin}/metrics") as response:
        lines = (await response.text()).splitlines()
    return round(
        sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith('fairlead_traced_requests_total{outcome="sent"')
        )
    )
