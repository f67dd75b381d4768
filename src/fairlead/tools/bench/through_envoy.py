"""Part 2: what Fairlead costs behind a real Envoy, against Envoy alone and against a processor without logic.

The variants take turns, round after round, so that a slow minute of the machine slows all of them; every ratio is made
within one round. Load generator, Envoy, sidecar and upstream are one process each and share the machine's cores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Literal

import aiohttp
import msgspec

from fairlead.tools.bench.decision import MODEL
from fairlead.tools.bench.load import Plan, Result
from fairlead.tools.bench.processes import child, cpu_s, resident_bytes
from fairlead.tools.bench.variants import ALONE, VARIANTS, Variant, World, world

Shape = Literal["1 KB", "64 KB", "256 KB", "steady"]
SATURATED: Final[tuple[Shape, ...]] = ("1 KB", "64 KB", "256 KB")
SHAPES: Final[tuple[Shape, ...]] = (*SATURATED, "steady")  # steady: 1 KB bodies at STEADY_RATE_PER_S
BODY_BYTES: Final = {"1 KB": 1024, "64 KB": 64 * 1024, "256 KB": 256 * 1024, "steady": 1024}
CONNECTIONS: Final = 32
STEADY_RATE_PER_S: Final = 100.0
_ATTEMPTS_TO_SERVE: Final = 20
_WARM_UP_S: Final = 0.4
_IDLE_S: Final = 2.0


class Effort(msgspec.Struct, frozen=True):
    """How long to measure."""

    rounds: int
    saturated_s: float
    steady_s: float

    def runs(self) -> int:
        return len(SATURATED) + self.rounds * len(VARIANTS) * len(SHAPES)  # first, the upstream without Envoy


class Run(msgspec.Struct, frozen=True):
    """One variant under one shape of load in one round. CPU and busy shares are of the whole run, warm-up included."""

    round: int
    variant: str
    shape: Shape
    requests_per_s: float
    p50_us: float
    p99_us: float
    requests: int
    errors: int
    first_error: str
    decision_us: float  # where it happens, as the sidecar counts it, on average; 0 for the others
    sidecar_cpu_us: float  # a request
    envoy_cpu_us: float
    upstream_cpu_us: float
    sidecar_busy: float  # of one core
    envoy_busy: float
    upstream_busy: float
    sidecar_resident_bytes: int
    envoy_resident_bytes: int


class Measured(msgspec.Struct, frozen=True):
    upstream_per_s: dict[str, float]  # by shape: the upstream without Envoy
    idle_cpu_ms_per_s: dict[str, float]  # by variant: the sidecar without a request, probes of engines included
    runs: list[Run]

    def failures(self) -> int:
        return sum(run.errors for run in self.runs)


async def measure(effort: Effort, seed: int, advance: Callable[[], None]) -> Measured:
    """Run everything; `advance` is called after each of `effort.runs()` runs."""
    async with world() as up:
        for variant in up.variants:
            await until_serving(variant, seed)
        idle_cpu_ms_per_s = await _idle_cpu_ms_per_s(up.variants)
        upstream_per_s: dict[str, float] = {}
        for shape in SATURATED:
            result = await _load(_plan(shape, up.upstream, MODEL, effort, seed, is_chosen=False))
            upstream_per_s[shape] = result.measured / result.measured_s
            advance()
        runs = []
        for number in range(effort.rounds):
            for shape in SHAPES:
                for variant in up.variants:
                    runs.append(await one_run(number, variant, shape, up, effort, seed))
                    advance()
        return Measured(upstream_per_s, idle_cpu_ms_per_s, runs)


async def _idle_cpu_ms_per_s(variants: tuple[Variant, ...]) -> dict[str, float]:
    before_s = {v.name: cpu_s(v.sidecar_pid) for v in variants if v.sidecar_pid is not None}
    await asyncio.sleep(_IDLE_S)
    return {v.name: (_used_s(v.sidecar_pid) - before_s[v.name]) * 1e3 / _IDLE_S for v in variants if v.name in before_s}


async def one_run(number: int, variant: Variant, shape: Shape, up: World, effort: Effort, seed: int) -> Run:
    """One variant under one shape of load, in the round of this number."""
    pids = (variant.sidecar_pid, variant.envoy_pid, up.upstream_pid)
    decided = await _decided(variant)
    before_s, started_s = [_used_s(pid) for pid in pids], time.perf_counter()
    is_chosen = variant.name != ALONE
    result = await _load(_plan(shape, variant.address, variant.model, effort, seed, is_chosen=is_chosen))
    elapsed_s = time.perf_counter() - started_s
    used_s = [_used_s(pid) - before for pid, before in zip(pids, before_s, strict=True)]
    cpu_us = [used * 1e6 / max(1, result.requests) for used in used_s]
    decisions, seconds = (after - before for after, before in zip(await _decided(variant), decided, strict=True))
    busy = [used / elapsed_s for used in used_s]
    return Run(
        round=number,
        variant=variant.name,
        shape=shape,
        requests_per_s=result.measured / result.measured_s,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        requests=result.requests,
        errors=result.errors,
        first_error=result.first_error,
        decision_us=seconds * 1e6 / max(1.0, decisions),
        sidecar_cpu_us=cpu_us[0],
        envoy_cpu_us=cpu_us[1],
        upstream_cpu_us=cpu_us[2],
        sidecar_busy=busy[0],
        envoy_busy=busy[1],
        upstream_busy=busy[2],
        sidecar_resident_bytes=resident_bytes(variant.sidecar_pid) if variant.sidecar_pid is not None else 0,
        envoy_resident_bytes=resident_bytes(variant.envoy_pid),
    )


async def _decided(variant: Variant) -> tuple[float, float]:
    """How many decisions Fairlead has made, and the seconds that they took."""
    if variant.admin is None:
        return 0.0, 0.0
    async with aiohttp.ClientSession() as session, session.get(f"http://{variant.admin}/debug/status") as response:
        status = await response.json()
    return status["decisions"], status["decision_seconds"]


def _plan(shape: Shape, address: str, model: str, effort: Effort, seed: int, *, is_chosen: bool) -> Plan:
    is_steady = shape == "steady"
    return Plan(
        address=address,
        model=model,
        body_bytes=BODY_BYTES[shape],
        seed=seed,
        connections=CONNECTIONS,
        warm_up_s=_WARM_UP_S,
        measured_s=effort.steady_s if is_steady else effort.saturated_s,
        rate_per_s=STEADY_RATE_PER_S if is_steady else 0.0,
        is_chosen=is_chosen,
    )


async def _load(plan: Plan) -> Result:
    async with child("fairlead.tools.bench.load", msgspec.json.encode(plan).decode()) as generator:
        return msgspec.json.decode(await generator.output(), type=Result)


async def until_serving(variant: Variant, seed: int) -> None:
    """Envoy asks the sidecar for its health before it sends it requests; until then they pass without it."""
    brief = Effort(rounds=1, saturated_s=0.1, steady_s=0.1)
    plan = _plan("1 KB", variant.address, variant.model, brief, seed, is_chosen=variant.name != ALONE)
    for _ in range(_ATTEMPTS_TO_SERVE):
        result = await _load(plan)
        if not result.errors:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"{variant.name} does not serve: {result.first_error}")


def _used_s(pid: int | None) -> float:
    return cpu_s(pid) if pid is not None else 0.0
