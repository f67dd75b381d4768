"""Rounds of attacks; after each the sidecar must come to rest as it was before."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TextIO

from tests.fuzz.attacks import Step
from tests.fuzz.bodies import LONGEST_BYTES
from tests.fuzz.world import Reading, World, running

_ROUNDS, _LEAST_ROUND_S, _MOST_ROUND_S = 24, 4.0, 30.0
_STEP_S = 120.0
_WARM_UP_SHARE, _WARM_UP_MOST_S = 0.4, 900.0
_WARM_UP_STEPS = 1000  # at the least, however slow the machine: until then tables and caches fill
_REPLAY_S = 240.0
_LAST_STEPS = 40
_MOST_SHOWN = 2000
_MIB = 1 << 20


@dataclass
class Report:
    steps: dict[str, int] = field(default_factory=dict)
    readings: list[tuple[float, Reading]] = field(default_factory=list)  # by seconds since the start
    faults: list[str] = field(default_factory=list)
    warm: int | None = None  # the first reading after the warm-up

    def growth(self) -> dict[str, tuple[float, float]]:
        """What must stay as it is, in the first and in the last third after the warm-up."""
        after = [each for _, each in self.readings[-1 if self.warm is None else self.warm :]]
        third = max(1, len(after) // 3)
        first, last = after[:third], after[-third:]

        def ends(of: Callable[[Reading], float]) -> tuple[float, float]:
            return statistics.median(map(of, first)), statistics.median(map(of, last))

        return {
            "MiB of the sidecar and its readers": ends(lambda each: (each.resident_bytes + each.readers_bytes) / _MIB),
            "Python's blocks": ends(lambda each: each.blocks),
            "values of labels": ends(lambda each: len(each.label_values)),
        }


async def fuzz(seconds: float, seed: int, families: Sequence[str], out: TextIO, *, growth: float = 1.05) -> Report:
    """Attack for so long. `growth`: the most that memory may be after the warm-up, by what it was."""
    report = Report()
    numbers = {family: count() for family in families}
    warm_s, end_s = min(seconds * _WARM_UP_SHARE, _WARM_UP_MOST_S), float("inf")

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    say(f"seed {seed}, {seconds:g} s, {warm_s:g} s of them or {_WARM_UP_STEPS} steps to warm up: {', '.join(families)}")
    async with running() as world:
        await _fill(world)
        await world.read()
        started_s = time.monotonic()
        round_s = min(max(seconds / _ROUNDS, _LEAST_ROUND_S), _MOST_ROUND_S)
        while not report.faults and (at_s := time.monotonic() - started_s) < end_s:
            steps = await _round(world, seed, numbers, min(round_s, end_s - at_s))
            reading = await world.read()
            report.faults += reading.faults + world.neighbour.lost
            report.readings.append((time.monotonic() - started_s, reading))
            for step in steps:
                report.steps[step.family] = report.steps.get(step.family, 0) + 1
            say(_line(report, world))
            world.neighbour.waits_ms.clear()
            now_s = report.readings[-1][0]
            if report.warm is None and now_s >= warm_s and sum(report.steps.values()) >= _WARM_UP_STEPS:
                report.warm, end_s = len(report.readings) - 1, now_s + seconds - warm_s
        if not report.faults:
            report.faults += _memory(report, growth)
        elif steps:
            say("FAILED\n  " + "\n  ".join(report.faults))
            report.faults += await _found(world, steps)
    say(_end(report))
    return report


async def _round(world: World, seed: int, numbers: dict[str, count[int]], seconds: float) -> list[Step]:
    steps: list[Step] = []
    stop = asyncio.Event()
    stop_neighbour = asyncio.Event()

    async def attack(family: str) -> None:
        while not stop.is_set():
            step = Step(family, next(numbers[family]), seed)
            steps.append(step)
            async with asyncio.timeout(_STEP_S):
                await step.run(world.target)

    asking = asyncio.create_task(world.neighbour.ask_until(stop_neighbour))
    attacking = [asyncio.create_task(attack(family)) for family in numbers]
    try:
        await asyncio.wait(attacking, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        stop.set()
        await asyncio.gather(*attacking)
        stop_neighbour.set()
        await asking
    finally:
        for each in (asking, *attacking):
            each.cancel()
    return steps


async def repeat(step: Step, out: TextIO) -> list[str]:
    """One step alone, against a fresh sidecar; what it broke."""
    async with running() as world:
        await step.run(world.target)
        print(step, file=out)
        return (await world.read()).faults


async def _found(world: World, steps: Sequence[Step]) -> list[str]:
    """The first step of a round that breaks something by itself, as far as one does."""
    until_s = time.monotonic() + _REPLAY_S
    for step in steps if world.sidecar.is_running else steps[: -_LAST_STEPS - 1 : -1]:
        if time.monotonic() > until_s:
            break
        if world.sidecar.is_running:
            before = (await world.read()).faults
            await step.run(world.target)
            new = [fault for fault in (await world.read()).faults if fault not in before]
        else:
            async with running() as fresh:
                await step.run(fresh.target)
                new = (await fresh.read()).faults
        if new:
            return [f"alone this step does it: {step}\n    {new[0]}"]
    return [f"no step does it alone; the round had {len(steps)}, the last: {steps[-1]}"]


async def _fill(world: World) -> None:
    """The longest bodies first, several at once, so that the peak of memory is behind us."""
    body = b'{"model":"small","prompt":"%b"}' % (b"x" * (LONGEST_BYTES - 100))
    head = b"POST /v1/completions HTTP/1.1\r\nhost: f\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def send() -> None:
        reader, writer = await asyncio.open_connection(*world.target.gateway)
        writer.write(head + body)
        await reader.read()
        writer.close()

    for _ in range(2):
        await asyncio.gather(*(send() for _ in range(3)))


def _memory(report: Report, growth: float) -> list[str]:
    new = sorted(report.readings[-1][1].label_values - report.readings[report.warm or 0][1].label_values)
    grown = [
        f"{what} grew from {first:.1f} to {last:.1f} after the warm-up, more than by {growth - 1:.0%}"
        for what, (first, last) in report.growth().items()
        if last > growth * first
    ]
    return [*grown, f"new values of labels: {', '.join(new)[:_MOST_SHOWN]}"] if grown else []


def _line(report: Report, world: World) -> str:
    at_s, reading = report.readings[-1]
    waits = sorted(world.neighbour.waits_ms) or [0.0]
    return (
        f"{at_s:6.0f} s  {sum(report.steps.values()):7} steps  sidecar {reading.resident_bytes / _MIB:6.1f} MiB "
        f"(keeps {reading.kept_bytes / _MIB:.0f}), {reading.blocks} blocks, "
        f"{len(reading.label_values)} values of labels  readers {reading.readers_bytes / _MIB:6.1f} MiB  "
        f"neighbour {len(waits)} requests, p50 {waits[len(waits) // 2]:.1f} ms, "
        f"p99 {waits[len(waits) * 99 // 100]:.1f} ms, longest {waits[-1]:.1f} ms"
    )


def _end(report: Report) -> str:
    counts = ", ".join(f"{family} {number}" for family, number in report.steps.items())
    lines = [f"{sum(report.steps.values())} steps ({counts})"]
    if report.readings:
        changes = report.growth().items()
        told = (
            f"{what} {first:.1f} to {last:.1f} ({last / max(first, 1) - 1:+.1%})" for what, (first, last) in changes
        )
        lines.append(f"since the warm-up: {', '.join(told)}")
        lines.append(f"caches: {', '.join(f'{name} {held}' for name, held in report.readings[-1][1].entries.items())}")
        lines += report.readings[-1][1].where
    lines += [f"FAILED: {fault}" for fault in report.faults] or [
        "load zero after each round, no failure, no exception, no neighbour's request lost or without advice"
    ]
    return "\n".join(lines)
