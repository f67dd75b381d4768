"""The running sidecar: what it starts, in which order, and how it ends.

Everything starts empty, then the configuration is applied as a reload would, and requests are taken last. The end goes
the other way, so that running requests keep all that they need, and metrics can be read until the last moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import structlog

from fairlead.addresses import host_and_port
from fairlead.admin.app import admin_app
from fairlead.admin.port import AdminPort
from fairlead.admin.token import AdminToken
from fairlead.config import Config, Listen, load
from fairlead.errors import UserError
from fairlead.extproc.server import ProcessorServer, processor_server
from fairlead.files import stamp_of
from fairlead.serving.build import build
from fairlead.serving.in_force import InForce
from fairlead.serving.learned_file import LearnedFile
from fairlead.serving.loop_delay import watch_loop
from fairlead.serving.memory import spare_from_collection
from fairlead.serving.reload import Reloading
from fairlead.serving.remembering import RememberedPool
from fairlead.serving.tend import report_faults, tend

log = structlog.get_logger("fairlead")


class Sidecar:
    """Serves the configuration file at `path`: `async with Sidecar(path)` listens, and drains at the end.

    Construction and entry raise UserError for an unusable configuration or an address in use.
    """

    def __init__(self, path: Path) -> None:
        seen = stamp_of(path)
        config = load(path)
        self.services = build(config, path.parent)
        self.in_force = InForce(self.services, path.parent)
        self.reloading = Reloading(path, seen, self.services, self.in_force)
        self._folder = path.parent
        self._ending = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._ending.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Refuse new requests, let running ones finish for `listen.drain_s`, then stop all that was started.

        A step that fails is logged, and the others still run.
        """
        await self._ending.aclose()

    async def _start(self) -> None:
        services, config = self.services, self.services.config
        await self._open_admin_port(config)
        self._at_end("observers", services.observers.stop)
        await services.observers.start()
        self._at_end("decision log", services.log.stop)
        services.log.start()
        self._at_end("tracing", services.tracer.stop)
        services.tracer.start()
        self._at_end("KV events", services.kv_following.stop)
        self._at_end("store", services.store.stop)
        self._at_end("mover", services.mover.stop)
        self._at_end("prefills", services.prefills.stop)
        if (reader := services.reader) is not None:
            self._at_end("body reader", lambda: asyncio.to_thread(reader.stop))
            reader.start()
        self._alongside("faults", report_faults(services))
        self._alongside("upkeep", tend(services))
        self._alongside("loop delay", watch_loop(services.loop_delays_s, services.stalls, services.clock_s))
        await services.cascades.escalation.open()
        self._at_end("cascades", services.cascades.escalation.close)
        await self.in_force.apply(config)
        self._alongside("discovery", self.in_force.follow())
        self._alongside("names", self.in_force.follow_names())
        pool_for_envoy = RememberedPool(services)
        self._at_end("pool for Envoy", pool_for_envoy.save)
        self._alongside("pool for Envoy", pool_for_envoy.keep())
        learned = LearnedFile(services, self._folder)
        learned.load()
        services.store.start()  # others may have ended a drain of which the file says that it goes on
        self.in_force.listener = learned.pool_changed
        self._at_end("learned constants", learned.save)
        self._alongside("learned constants", learned.keep())
        await self._take_requests(config.listen)
        services.state = "ready"
        spare_from_collection()
        log.info("serving", grpc=config.listen.grpc, admin=config.listen.admin, policy=config.policy.name)

    async def _open_admin_port(self, config: Config) -> None:
        address = config.listen.admin
        host, port = host_and_port(address)
        token = AdminToken(config.listen.admin_token_path(self._folder))
        try:
            token.check()
        except UserError as error:
            raise config.located(error) from None
        app = admin_app(self.services, (host, *config.listen.admin_hosts), token)
        admin = AdminPort(app)
        self._at_end("admin port", admin.close)
        try:
            await admin.open(host, port)
        except OSError as error:
            message = f"listen.admin: {address} cannot be used ({error.strerror}); is another sidecar running there?"
            raise config.located(UserError(message)) from None

    async def _take_requests(self, listen: Listen) -> None:
        server = processor_server(self.services, listen.grpc, listen.server, listen.tls_files(self._folder))

        async def drain() -> None:
            self.services.state = "draining"
            log.info("draining", at_most_s=listen.drain_s)
            await server.withdraw()
            self.services.waiting.drain()
            await server.drain(listen.drain_s)

        try:
            await server.start()
        except OSError:
            message = f"listen.grpc: {listen.grpc} cannot be used; is another sidecar running there?"
            raise self.services.config.located(UserError(message)) from None
        self._at_end("requests", drain)
        if not self.services.pool_is_known:
            self._alongside("readiness", self._report_ready(server))

    async def _report_ready(self, server: ProcessorServer) -> None:
        await self.in_force.known.wait()
        await server.report_ready()
        log.info("the pool is known", endpoints=len(self.services.router.pool.endpoints))

    def _alongside(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._at_end(name, end)

    def _at_end(self, step: str, end: Callable[[], Awaitable[object]]) -> None:
        async def ended() -> None:
            try:
                await end()
            except Exception:
                log.exception("a step of the drain failed; the others continue", step=step)

        self._ending.push_async_callback(ended)
