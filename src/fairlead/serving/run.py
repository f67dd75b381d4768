"""`fairlead serve`: the sidecar until a signal ends it. SIGHUP reads the configuration again."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import structlog

from fairlead.config import load
from fairlead.serving.preflight import preflight
from fairlead.serving.sidecar import Sidecar

log = structlog.get_logger("fairlead")


async def run(path: Path, started: asyncio.Event | None = None) -> None:
    """Serve the configuration at `path` until SIGTERM or SIGINT, and set `started` once that has begun.

    Raises UserError if it cannot start.
    """
    preflight(load(path), path.parent)
    stop, reload = asyncio.Event(), asyncio.Event()
    sidecar = Sidecar(path)
    loop = asyncio.get_running_loop()
    for number, event in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, reload)):
        loop.add_signal_handler(number, event.set)
    async with sidecar:
        if started is not None:
            started.set()
        watching = asyncio.create_task(sidecar.reloading.watch(reload), name="watch the configuration")
        try:
            await stop.wait()
        finally:
            watching.cancel()
            await asyncio.wait([watching])
    log.info("stopped")
