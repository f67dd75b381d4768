"""A world for watches: engines of aiohttp whose pages a test sets, and waiting for a condition with a deadline."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from aiohttp import web

from fairlead.config import Observe
from fairlead.core.endpoint import Endpoint
from fairlead.engines.kv_transfer import Deadlines
from fairlead.engines.observer import Observers

PATIENCE_S = 60.0  # ends a test that would hang; what a test waits for comes in milliseconds
QUICK = Observe(interval_ms=20, health_interval_ms=30, rtt_interval_ms=20, failures_to_eject=3, stale_ms=150)
IMPATIENT = QUICK.model_copy(update={"timeout_ms": 400})  # for engines that hang

# Of a copy of KV: a leg that is to succeed has longer than any test takes, and one that is to run out does so soon.
PATIENT = Deadlines(discover_s=60.0, tokenize_s=60.0, export_s=60.0, import_s=60.0, confirm_s=60.0)
_SOON_S = 0.3


def soon(leg: Literal["export", "import", "confirm"]) -> Deadlines:
    """Only this leg's time runs out soon."""
    return msgspec.structs.replace(PATIENT, **{f"{leg}_s": _SOON_S})


@dataclass
class FakeEngine:
    """What it answers; `asked` counts requests by path, `peers` the connections they came on."""

    health_status: int = 200
    metrics: bytes = b'vllm:num_requests_running{engine="0"} 0.0\n'
    metrics_status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    version: bytes = b'{"version":"0.32.0"}'
    models: bytes = b'{"data":[{"id":"adapter","max_model_len":7},{"id":"m","max_model_len":4096}]}'
    hanging: set[str] = field(default_factory=set)
    delays_s: dict[str, float] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    peers: set[tuple[str, int]] = field(default_factory=set)
    port: int = 0
    runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        assert self.runner is not None
        assert self.runner.server is not None
        return len(self.runner.server.connections)

    async def start(self) -> None:
        """Listen, on the port of the time before if there was one."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self.runner.setup()
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        await web.SockSite(self.runner, listener).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        if request.path in self.hanging:
            await asyncio.Event().wait()
        await asyncio.sleep(self.delays_s.get(request.path, 0))
        if request.path == "/health":
            return web.Response(status=self.health_status)
        if request.path == "/metrics":
            return web.Response(body=self.metrics, status=self.metrics_status, headers=self.headers)
        if request.path == "/version":
            return web.Response(body=self.version)
        if request.path == "/v1/models":
            return web.Response(body=self.models)
        return web.Response(status=404)


@asynccontextmanager
async def watching(
    endpoints: Iterable[Endpoint], observe: Observe = QUICK, clock_s: Callable[[], float] = time.perf_counter
) -> AsyncIterator[Observers]:
    observers = Observers(observe, endpoints, clock_s)
    await observers.start()
    try:
        yield observers
    finally:
        await observers.stop()
