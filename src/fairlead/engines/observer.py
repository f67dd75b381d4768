"""All watches of a pool under one owner: started, stopped and replaced together.

What they see is on the endpoints (`healthy`, `rtt_ms`, `reported`, `identity`, `generation`); what they count is in
`counts`. Endpoints are assumed healthy until a probe fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from fairlead.config import Observe
from fairlead.core.endpoint import Endpoint
from fairlead.engines.watch import Watch, WatchCounts


class Observers:
    """`clock_s` must be the clock that the request path stamps outcomes with."""

    def __init__(
        self, observe: Observe, endpoints: Iterable[Endpoint], clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._observe = observe
        self._endpoints = tuple(endpoints)
        self._clock_s = clock_s
        self._started = False
        self._watches: dict[str, Watch] = {}  # by address
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def counts(self) -> Mapping[str, WatchCounts]:
        """Counts by address, for the endpoints that are watched now."""
        return {address: watch.counts for address, watch in self._watches.items()}

    async def start(self) -> None:
        """The first round of every endpoint starts at once."""
        self._started = True
        await self.replace(self._observe, self._endpoints)

    async def stop(self) -> None:
        """Returns when no task and no connection is left. Calling it again, or before `start`, does nothing."""
        self._started = False
        await self._end(list(self._tasks))

    async def replace(self, observe: Observe, endpoints: Iterable[Endpoint]) -> None:
        """Watch these endpoints instead, with new settings. An endpoint that stays keeps its watch and its state."""
        self._observe, self._endpoints = observe, tuple(endpoints)
        if not self._started:
            return
        wanted = {endpoint.address: endpoint for endpoint in self._endpoints}
        await self._end([a for a, watch in self._watches.items() if wanted.get(a) is not watch.endpoint])
        for address, endpoint in wanted.items():
            if address in self._watches:
                self._watches[address].observe = observe
                continue
            watch = self._watches[address] = Watch(endpoint, observe, self._clock_s)
            self._tasks[address] = asyncio.create_task(watch.run(), name=f"watch {address}")

    async def _end(self, addresses: list[str]) -> None:
        tasks = [self._tasks.pop(address) for address in addresses]
        for address in addresses:
            del self._watches[address]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
