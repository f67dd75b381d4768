"""What watching costs while no request comes: CPU of a process that runs `engines.observer.Observers` and nothing else.

`python -m fairlead.tools.bench.tables.watches 8 127.0.0.1:1 ...` watches those engines at the default intervals,
measures itself for eight seconds after the rush of the start, and prints one JSON line. The loop is uvloop's, as
`serve` has it.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from fairlead.config import Observe
from fairlead.core.endpoint import Endpoint, EndpointSpec
from fairlead.engines.observer import Observers
from fairlead.tools.bench.decision import MODEL
from fairlead.tools.bench.processes import addresses_of, child
from fairlead.tools.bench.tables.vllm_page import page

ENDPOINTS: Final = (10, 100)
_SETTLES_IN_S: Final = 2.0


class Watching(msgspec.Struct, frozen=True):
    """One measurement. Scrapes are reads of /metrics; failures are of scrapes and probes since the start."""

    endpoints: int
    measured_s: float
    cpu_s: float
    scrapes: int
    failures: int
    unread: int  # endpoints of which nothing is known at the end

    def cores(self) -> float:
        return self.cpu_s / self.measured_s


class Watches(msgspec.Struct, frozen=True):
    page_bytes: int
    runs: list[Watching]

    def failures(self) -> int:
        return sum(run.failures + run.unread for run in self.runs)


async def measure(measured_s: float, advance: Callable[[], None]) -> Watches:
    """Start engines and watch ever more of them; `advance` is called after each measurement."""
    runs = []
    async with child("fairlead.tools.bench.tables.engines", str(ENDPOINTS[-1])) as engines:
        addresses = await addresses_of(engines)
        for endpoints in ENDPOINTS:
            arguments = (str(measured_s), *addresses[:endpoints])
            async with child("fairlead.tools.bench.tables.watches", *arguments) as watcher:
                runs.append(msgspec.json.decode(await watcher.output(), type=Watching))
            advance()
    return Watches(len(page(0)), runs)


async def watch(measured_s: float, addresses: list[str]) -> Watching:
    """Watch, and measure this process meanwhile."""
    endpoints = [Endpoint(EndpointSpec(address, MODEL)) for address in addresses]
    observers = Observers(Observe(), endpoints)
    await observers.start()
    await asyncio.sleep(_SETTLES_IN_S)
    before_s, before_cpu_s, before_scrapes = time.perf_counter(), _cpu_s(), _scrapes(observers)
    await asyncio.sleep(measured_s)
    after_s, after_cpu_s = time.perf_counter(), _cpu_s()
    counts = observers.counts.values()
    watching = Watching(
        endpoints=len(endpoints),
        measured_s=after_s - before_s,
        cpu_s=after_cpu_s - before_cpu_s,
        scrapes=_scrapes(observers) - before_scrapes,
        failures=sum(c.faults + sum(c.scrape_failures.values()) + sum(c.probe_failures.values()) for c in counts),
        unread=sum(endpoint.report.stale for endpoint in endpoints),
    )
    await observers.stop()
    return watching


def _scrapes(observers: Observers) -> int:
    return sum(counts.scrapes for counts in observers.counts.values())


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    import uvloop

    watching = uvloop.run(watch(float(sys.argv[1]), sys.argv[2:]))
    print(msgspec.json.encode(watching).decode())
