"""The passes: in each round, under each shape of load, the gateways take turns.

A slow minute of the machine then slows all of them, and ratios are made within a round. A gateway that is not measured
is paused, so that what it does without requests (probes, metrics of its engines) slows nobody else. One connection
sends its next request when it has its answer.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from fairlead.tools.bench.decision import MODEL
from fairlead.tools.bench.load import Load, Plan, Result
from fairlead.tools.bench.processes import addresses_of, child
from fairlead.tools.bench.rivals.gateways import Gateway, start_ours, start_rival
from fairlead.tools.bench.rivals.install import UnavailableError
from fairlead.tools.bench.rivals.pins import Pin

_WARM_UP_S: Final = 0.15
_IDLE_S: Final = 1.0
_AWAKE_S: Final = 0.1  # after a pause: what was due in it is done
_SERVES_WITHIN_S: Final = 30.0


class Shape(msgspec.Struct, frozen=True):
    """A pool and the load on it."""

    endpoints: int
    body_kib: int
    connections: int


class Effort(msgspec.Struct, frozen=True):
    """What is measured, and for how long."""

    rounds: int
    measured_s: float
    pools: tuple[int, ...] = (4, 100)
    bodies_kib: tuple[int, ...] = (1, 16, 64, 256)
    connections: tuple[int, ...] = (1, 16, 64)

    def shapes(self, endpoints: int) -> list[Shape]:
        return [Shape(endpoints, kib, count) for kib in self.bodies_kib for count in self.connections]

    def passes(self) -> int:
        """How often `advance` is called: once for each shape in each round."""
        return self.rounds * sum(len(self.shapes(endpoints)) for endpoints in self.pools)


class Run(msgspec.Struct, frozen=True):
    """One gateway under one shape in one round. CPU is of the whole run, warm-up included."""

    round: int
    gateway: str
    shape: Shape
    requests_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float  # a request, of all the gateway's processes
    resident_bytes: int  # after it
    requests: int
    errors: int
    first_error: str


class Idle(msgspec.Struct, frozen=True):
    """A gateway without a request."""

    gateway: str
    endpoints: int
    cpu_ms_per_s: float


class Missing(msgspec.Struct, frozen=True):
    """A rival that was not measured with a pool, and why."""

    gateway: str
    endpoints: int
    reason: str


class Measured(msgspec.Struct, frozen=True):
    runs: list[Run]
    idle: list[Idle]
    missing: list[Missing]


async def measure(
    effort: Effort, rivals: Mapping[Pin, Path | UnavailableError], seed: int, advance: Callable[[], None]
) -> Measured:
    """Run everything. `rivals` gives the folder of each, or why there is none; `advance` is called after each pass."""
    task = asyncio.current_task()
    assert task is not None
    # Ended without this, we would leave the paused gateways paused, which nothing but SIGKILL then ends.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    measured = Measured([], [], [])
    for endpoints in effort.pools:
        await _measure_pool(endpoints, effort, rivals, seed, advance, measured)
    return measured


async def _measure_pool(
    endpoints: int,
    effort: Effort,
    rivals: Mapping[Pin, Path | UnavailableError],
    seed: int,
    advance: Callable[[], None],
    measured: Measured,
) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fairlead-rivals-")))
        engines = await stack.enter_async_context(child("fairlead.tools.bench.rivals.engines", str(endpoints)))
        addresses = await addresses_of(engines)
        gateways = await start_ours(stack, addresses, folder)
        for gateway in gateways:
            await _until_serving(gateway, seed)
        for pin, installed in rivals.items():
            try:
                gateways.append(await _serving_rival(stack, pin, installed, addresses, folder, seed))
            except UnavailableError as error:
                measured.missing.append(Missing(pin.title, endpoints, str(error)))
        stack.callback(_resume, gateways)  # what is paused cannot stop
        for gateway in gateways:
            gateway.pause()
        for gateway in gateways:
            measured.idle.append(Idle(gateway.name, endpoints, await _idle_cpu_ms_per_s(gateway)))
        for number in range(effort.rounds):
            for shape in effort.shapes(endpoints):
                for gateway in gateways:
                    measured.runs.append(await _run(number, gateway, shape, effort.measured_s, seed))
                advance()


async def _serving_rival(
    stack: AsyncExitStack,
    pin: Pin,
    installed: Path | UnavailableError,
    addresses: list[str],
    folder: Path,
    seed: int,
) -> Gateway:
    """Raises UnavailableError where it was not installed, does not start or does not serve."""
    if isinstance(installed, UnavailableError):
        raise installed
    async with AsyncExitStack() as own:
        gateway = await start_rival(own, pin, installed, addresses, folder)
        await _until_serving(gateway, seed)
        await stack.enter_async_context(own.pop_all())
    return gateway


async def _until_serving(gateway: Gateway, seed: int) -> None:
    """Engines and processors are found healthy only after a while. Raises UnavailableError when they are not."""
    give_up_s = time.monotonic() + _SERVES_WITHIN_S
    while (result := await _load(gateway, Shape(0, 1, 1), 0.1, seed)).errors or not result.measured:
        if time.monotonic() > give_up_s:
            raise UnavailableError(f"it starts and does not serve: {result.first_error}")
        await asyncio.sleep(0.2)


async def _idle_cpu_ms_per_s(gateway: Gateway) -> float:
    gateway.resume()
    await asyncio.sleep(_AWAKE_S)
    before_s = gateway.cpu_s()
    await asyncio.sleep(_IDLE_S)
    used_s = gateway.cpu_s() - before_s
    gateway.pause()
    return used_s * 1e3 / _IDLE_S


async def _run(number: int, gateway: Gateway, shape: Shape, measured_s: float, seed: int) -> Run:
    gateway.resume()
    await asyncio.sleep(_AWAKE_S)
    before_s = gateway.cpu_s()
    result = await _load(gateway, shape, measured_s, seed)
    cpu_us = (gateway.cpu_s() - before_s) * 1e6 / max(1, result.requests)
    resident_bytes = gateway.resident_bytes()
    gateway.pause()
    return Run(
        round=number,
        gateway=gateway.name,
        shape=shape,
        requests_per_s=result.measured / result.measured_s,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        cpu_us=cpu_us,
        resident_bytes=resident_bytes,
        requests=result.requests,
        errors=result.errors,
        first_error=result.first_error,
    )


async def _load(gateway: Gateway, shape: Shape, measured_s: float, seed: int) -> Result:
    """No session header: rivals know none, and all find an engine by the prompt."""
    plan = Plan(
        address=gateway.address,
        model=MODEL,
        body_bytes=shape.body_kib * 1024,
        seed=seed,
        connections=shape.connections,
        warm_up_s=_WARM_UP_S,
        measured_s=measured_s,
        rate_per_s=0.0,
        is_chosen=gateway.is_chosen,
        has_session=False,
    )
    return await Load(plan).run()


def _resume(gateways: list[Gateway]) -> None:
    for gateway in gateways:
        gateway.resume()
