"""The admin port's connections: bounded, so that whoever reaches it cannot take the open files that requests need."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

MOST_CONNECTIONS: Final = 256
_IDLE_S: Final = 75.0  # between two requests; Prometheus asks every 15 or 30 s


class AdminPort:
    """Beyond the limit those that are open for longest are closed for new ones, unless they are being answered.

    Refusing the new ones would lock out the probes, and a sidecar whose probes fail is restarted.
    """

    def __init__(self, app: web.Application) -> None:
        self._answered: set[web.RequestHandler] = set()
        app.middlewares.append(self._answering())
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=_IDLE_S)
        self._listening: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return 0 if self._runner.server is None else len(self._runner.server.connections)

    async def open(self, host: str, port: int) -> None:
        """Raises OSError. `close` must follow."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def accepted() -> web.RequestHandler:
            connections = server.connections
            idle = (each for each in connections if each not in self._answered)
            for oldest in islice(idle, max(0, len(connections) + 1 - MOST_CONNECTIONS)):
                oldest.force_close()
            return server()

        self._listening = await asyncio.get_running_loop().create_server(accepted, host, port)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    def _answering(self) -> Middleware:
        @web.middleware
        async def answering(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._answered.add(request.protocol)
            try:
                return await handler(request)
            finally:
                self._answered.discard(request.protocol)

        return answering
