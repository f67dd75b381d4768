"""The edge as a server: listening, keeping its connections' time, and a drain that loses nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from fairlead.edge.grpc import Method, Services, UnfinishedBytes
from fairlead.edge.http2 import Limits
from fairlead.edge.listening import Listeners
from fairlead.edge.protocol import EdgeProtocol
from fairlead.edge.statistics import EdgeStatistics
from fairlead.edge.tls import TlsFiles

log = structlog.get_logger("fairlead")
_TICK_S: Final = 1.0
_MOST_CONNECTIONS: Final = 1024
_HELD_BYTES: Final = 512 << 20  # of unfinished messages
_LEAST_HELD_MESSAGES: Final = 8  # of the longest


class Server:
    """`start`, then `drain`. `methods` by path, as `/package.Service/Method`."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        max_message_bytes: int,
        report_fault: Callable[[str], None],
        tls: TlsFiles | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._methods = methods
        self._max_message_bytes = max_message_bytes
        self._report_fault = report_fault
        self._tls = tls
        self._limits = limits or Limits()
        self._held = UnfinishedBytes(max(_HELD_BYTES, _LEAST_HELD_MESSAGES * max_message_bytes))
        self._connections: set[EdgeProtocol] = set()
        self._listeners: Listeners | None = None
        self._servers: list[asyncio.Server] = []
        self._context: ssl.SSLContext | None = None  # that new connections are served with
        self._ticking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._is_draining = False
        self._refused_connections = 0
        self._refused_streams = 0  # of connections that are gone
        self._faults: Counter[str] = Counter()

    def statistics(self) -> EdgeStatistics:
        return EdgeStatistics(
            len(self._connections),
            self._refused_connections,
            self._refused_streams + sum(connection.refused_streams for connection in self._connections),
            dict(self._faults),
            self._held.bytes,
        )

    async def start(self, address: str) -> int:
        """Bind and serve; the port, or 1 for a Unix socket. Raises OSError when the address cannot be had, and
        UserError for a certificate that cannot be used."""
        loop = asyncio.get_running_loop()
        self._services = Services(
            self._methods, self._max_message_bytes, loop.call_later, self._held, self._report_fault
        )
        if self._tls is not None:
            self._tls.load()
        self._listeners = Listeners(address)
        await self._accept(self._listeners)
        self._ticking = loop.create_task(self._tick(self._listeners))
        return self._listeners.port

    async def drain(self, grace_s: float) -> None:
        """Take no new connections and no new streams, give running ones `grace_s`, then cut off what is left."""
        self._is_draining = True
        self._stop_accepting()
        if self._listeners is not None:
            self._listeners.close()
        for connection in tuple(self._connections):
            connection.drain()
        try:
            async with asyncio.timeout(grace_s):
                while self._connections:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.close()
            await asyncio.sleep(0)  # what says so is written
            for connection in tuple(self._connections):
                connection.abort()
            await asyncio.sleep(0)
        if self._ticking is not None:
            self._ticking.cancel()

    # ---- of each connection ---------------------------------------------------------------------------------------

    def opened(self, protocol: EdgeProtocol) -> bool:
        if self._is_draining or len(self._connections) >= _MOST_CONNECTIONS:
            self._refused_connections += 1
            return False
        self._connections.add(protocol)
        return True

    def lost(self, protocol: EdgeProtocol) -> None:
        self._connections.discard(protocol)
        self._refused_streams += protocol.refused_streams
        if protocol.fault:
            self._faults[protocol.fault] += 1
        self._changed.set()

    # ---- within ---------------------------------------------------------------------------------------------------

    async def _accept(self, listeners: Listeners) -> None:
        """Serve on copies of the listening sockets: they outlive a change of certificates, so no connection is lost."""
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.context
        handshake_s = None if context is None else self._limits.preface_s
        former, servers = self._servers, []
        for each in listeners.sockets:
            create: Any = loop.create_unix_server if each.family == socket.AF_UNIX else loop.create_server
            server = await create(self._protocol, sock=each.dup(), ssl=context, ssl_handshake_timeout=handshake_s)
            servers.append(server)
        self._servers, self._context = servers, context
        for server in former:
            server.close()

    def _protocol(self) -> EdgeProtocol:
        return EdgeProtocol(self, self._services, self._limits)

    def _stop_accepting(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []

    async def _tick(self, listeners: Listeners) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = asyncio.get_running_loop().time()
            for connection in tuple(self._connections):
                try:
                    connection.tick(now_s)
                except Exception:  # an internal error in one connection must not stop the others' timeouts
                    self._report_fault(traceback.format_exc(limit=-8))
                    connection.abort()
            if self._tls is not None and not self._is_draining:
                try:
                    await self._follow(self._tls, listeners)
                except Exception:  # no file descriptor is left, perhaps: the next turn may have one
                    self._report_fault(traceback.format_exc(limit=-8))

    async def _follow(self, tls: TlsFiles, listeners: Listeners) -> None:
        """Serve new connections with the certificates that the files hold now."""
        refused = tls.reloads_refused
        if tls.have_changed() or tls.context is not self._context:
            await self._accept(listeners)
            log.info("new certificates are in force")
        elif tls.reloads_refused > refused:
            log.error("the new certificates are refused, the old ones stay", reason=tls.last_refusal)
