"""Watches the engines beside the request path: who may be chosen, and how far away each is.

One task an endpoint asks `/health` over a kept-alive connection, at jittered intervals. Failures in a row eject the
endpoint, the first success brings it back. An answer of 4xx is an answer: an engine without `/health` is alive.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp
import structlog

from fairlead.config import Observe
from fairlead.core.pool import Endpoint

_JITTER = 0.2  # of the interval, either way, so that a hundred probes do not fall on one moment

log = structlog.get_logger("fairlead")


@dataclass(slots=True)
class Seen:
    """What probing one endpoint has found so far."""

    probes: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    ejections: int = 0


class Observers:
    """`start`, then `stop`; `replace` when the pool changes. Endpoints are healthy until a probe says otherwise."""

    def __init__(self, settings: Observe, endpoints: Iterable[Endpoint]) -> None:
        self._settings = settings
        self._endpoints = tuple(endpoints)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self.seen: dict[str, Seen] = {}

    async def start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_ms / 1e3)
        # One connection an endpoint, kept between probes: the time of a request is then a round trip.
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=1, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        await self.replace(self._endpoints)

    async def stop(self) -> None:
        await self._end(list(self._tasks))
        if self._session is not None:
            await self._session.close()

    async def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Watch exactly these endpoints; those that stay keep their connection and what was seen of them."""
        wanted = {endpoint.address: endpoint for endpoint in endpoints}
        await self._end([address for address in self._tasks if address not in wanted])
        for address, endpoint in wanted.items():
            if address not in self._tasks:
                self.seen[address] = Seen()
                self._tasks[address] = asyncio.create_task(self._watch(endpoint), name=f"observe {address}")

    async def _end(self, addresses: list[str]) -> None:
        tasks = [self._tasks.pop(address) for address in addresses]
        for address in addresses:
            del self.seen[address]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, endpoint: Endpoint) -> None:
        seen = self.seen[endpoint.address]
        while True:
            rtt_ms = await self._probe(endpoint.address)
            self._learn(endpoint, seen, rtt_ms)
            await asyncio.sleep(self._settings.interval_ms / 1e3 * random.uniform(1 - _JITTER, 1 + _JITTER))

    async def _probe(self, address: str) -> float | None:
        """Milliseconds of one answered `/health`, or None for a failure."""
        assert self._session is not None, "start comes first"
        started = time.perf_counter()
        try:
            async with self._session.get(f"http://{address}/health", allow_redirects=False) as response:
                failed = response.status >= 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return None if failed else (time.perf_counter() - started) * 1e3

    def _learn(self, endpoint: Endpoint, seen: Seen, rtt_ms: float | None) -> None:
        seen.probes += 1
        if rtt_ms is None:  # the RTT keeps its last value
            seen.failures += 1
            seen.failures_in_a_row += 1
            if endpoint.healthy and seen.failures_in_a_row >= self._settings.failures_to_eject:
                endpoint.healthy = False
                seen.ejections += 1
                log.warning("endpoint ejected", endpoint=endpoint.address, failures=seen.failures_in_a_row)
            return
        if not endpoint.healthy:
            log.info("endpoint is back", endpoint=endpoint.address)
        seen.failures_in_a_row = 0
        endpoint.healthy = True
        alpha = self._settings.rtt_alpha
        endpoint.rtt_ms = rtt_ms if endpoint.rtt_ms == 0.0 else alpha * rtt_ms + (1 - alpha) * endpoint.rtt_ms
