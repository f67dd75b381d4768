"""Keeps `gateway.remember` true: the files from which an Envoy serves that starts while no sidecar answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from fairlead.config import Config
from fairlead.extproc.services import Services
from fairlead.gateway import remembered

_LOOK_S: Final = 0.25

log = structlog.get_logger("fairlead")


class RememberedPool:
    """Writes what Envoy is sent, once that is known, and nothing before: the files then say more than this sidecar."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._written: tuple[str, Config] | None = None  # the version in the files, and for whom
        self._failure = ""

    async def keep(self) -> None:
        """Write the files whenever the pool has changed. Runs until cancelled."""
        await self._write(lambda: remembered.prepare(self._services.config))  # an Envoy may be waiting for them
        while True:
            await self.save()
            await asyncio.sleep(_LOOK_S)

    async def save(self) -> None:
        envoys, config = self._services.envoys, self._services.config
        now = envoys.version, config
        if envoys.hosts is None or now == self._written:
            return
        # Of what changes meanwhile some may be written already; the next turn writes all of it.
        if await self._write(lambda: remembered.write(config, envoys.resource)):
            self._written = now

    async def _write(self, write: Callable[[], None]) -> bool:
        try:
            await asyncio.to_thread(write)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._failure:
                folder = self._services.config.gateway.remember
                log.error("the pool cannot be kept for Envoy", folder=folder, reason=reason)
            self._failure = reason
            return False
        self._failure = ""
        return True
