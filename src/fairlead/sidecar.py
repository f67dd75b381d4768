"""The running sidecar: router, gRPC server, admin pages and observers under one owner.

`run` is `fairlead serve`: it starts everything, reads the configuration again on SIGHUP or when the file changes, and
drains on SIGTERM. A new configuration that is wrong is refused with its reason in the log, and the old one stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import structlog
from aiohttp import web

from fairlead.addresses import host_and_port
from fairlead.cascade.serving.counts import CascadeCounts
from fairlead.cascade.serving.escalation import Escalation
from fairlead.cascade.serving.judges import load_judges
from fairlead.cascade.serving.samples import SampleFile
from fairlead.config import ANY_ROUTE, Config, Migration, load
from fairlead.context.reuse import ContextReuse
from fairlead.core.budget import MessageBudget
from fairlead.core.learning import Learner
from fairlead.core.migration import NO_HOST_IS_HOT, Rules
from fairlead.core.peers import Load
from fairlead.core.prefix import BLOCK_TOKENS
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.router import Router
from fairlead.core.sessions import SessionTable
from fairlead.decision_log import open_log
from fairlead.engines.kv_following import KvFollowing
from fairlead.engines.kv_transfer import Deadlines
from fairlead.engines.observer import Observers
from fairlead.errors import UserError
from fairlead.extproc.cascade import RequestCascades
from fairlead.extproc.pick import Shared
from fairlead.extproc.reuse import RequestReuse, ReuseRule
from fairlead.extproc.server import ProcessorServer
from fairlead.memory import spare_from_collection
from fairlead.migration.mover import Mover
from fairlead.policies import build_policy
from fairlead.pool_setup import make_pool
from fairlead.stores import open_store
from fairlead.telemetry.admin import admin_app
from fairlead.telemetry.metrics import FairleadCollector
from fairlead.telemetry.recorder import Recorder
from fairlead.telemetry.views import Sources
from fairlead.tuning.serving import TrialLog, tuner_of

_WATCH_S = 0.5
_FAULT_LOG_S = 5.0
_TEND_S = 1.0
_FIXED_SECTIONS = ("listen", "sessions", "prefixes", "tenants", "decisions")  # a reload cannot change them

log = structlog.get_logger("fairlead")


class Sidecar:
    """Everything that serves one configuration file. `start`, then `drain`; `reload` in between."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.config = load(path)
        pool = make_pool(self.config, path.parent)
        sessions, prefixes = self.config.sessions, self.config.prefixes
        self.router = Router(
            pool,
            _policy(self.config),
            fallbacks=self.config.gateway.fallbacks,
            rng=Random(),
            index=PrefixIndex(max_bytes=prefixes.max_bytes, ttl_s=prefixes.ttl),
            sessions=SessionTable(ttl_s=sessions.ttl, max_entries=sessions.max_entries),
            rules=_rules(self.config.migration),
        )
        self.mover = Mover(
            self.router,
            self._bootstraps,
            time.perf_counter,
            _deadlines(self.config.migration),
            self._is_decided,
            lambda model: self.config.model(model).kv_bytes_per_token,
        )
        self._use_policy()
        self.recorder = Recorder()
        self.learner = Learner()
        self.reuse = RequestReuse(ContextReuse(clock_s=time.perf_counter))
        self._use_reuse()
        self.cascades = RequestCascades(CascadeCounts())
        self._observers = Observers(self.config.observe, pool.endpoints)
        self._processor = ProcessorServer(
            Shared(
                router=self.router,
                recorder=self.recorder,
                session_headers=tuple(name.lower().encode() for name in self.config.sessions.headers),
                max_body_bytes=self.config.gateway.max_body_bytes,
                clock_s=time.perf_counter,
                tenant_header=(self.config.tenants.header or "").lower().encode(),
                learner=self.learner,
                budget=MessageBudget(self.config.observe.messages_per_second),
                mover=self.mover,
                reuse=self.reuse,
                cascades=self.cascades,
            ),
            self.config.listen.grpc,
        )
        url = self.config.sessions.store
        self.store = None
        if url != "memory":
            self.store = open_store(
                url,
                table=self.router.sessions,
                endpoints=lambda: self.router.pool.endpoints,
                apply=self._told_of_others,
                clock_s=time.perf_counter,
            )
        if self.config.decisions is not None:
            self.recorder.log = open_log(self.config.decisions, path.parent, lambda: self.router.pool.models)
        self._kv_following = KvFollowing(self.router.index, time.perf_counter)
        self._draining = False
        self._admin: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen and observe. Raises UserError when an address is taken."""
        self.cascades.escalation = escalation = self._escalation()
        try:
            self._use_cascades(self.config)
            await self._processor.start()
        except UserError:
            await escalation.close()
            raise
        except OSError:
            await escalation.close()
            message = f"listen.grpc: {self.config.listen.grpc} cannot be used; is another sidecar running there?"
            raise UserError(message) from None
        collector = FairleadCollector(
            self.router,
            self.recorder,
            self.learner,
            lambda: self._processor.running_streams,
            lambda: self._observers.counts,
            lambda: self._kv_following.counts,
            self.store,
            self.mover,
            self.reuse.reuse,
            self.cascades.counts,
        )
        sources = Sources(
            router=self.router,
            recorder=self.recorder,
            learner=self.learner,
            ready=lambda: not self._draining,
            config=self._shown_config,
            policy_name=lambda: self.config.policy.name,
            running_streams=lambda: self._processor.running_streams,
            clock_s=time.perf_counter,
        )
        app = admin_app(sources, collector)
        self._admin = web.AppRunner(app, access_log=None)
        await self._admin.setup()
        host, port = host_and_port(self.config.listen.admin)
        try:
            await web.TCPSite(self._admin, host, port).start()
        except OSError as error:
            await self.drain()
            raise UserError(f"listen.admin: {self.config.listen.admin} cannot be used ({error.strerror})") from None
        await self._observers.start()
        await self._kv_following.follow(self.config, self.router.pool.endpoints)
        if self.store is not None:
            self.store.start()
        if self.recorder.log is not None:
            self.recorder.log.start()
        spare_from_collection()
        log.info(
            "serving", grpc=self.config.listen.grpc, admin=self.config.listen.admin, policy=self.config.policy.name
        )

    async def drain(self) -> None:
        """Refuse new requests, let running ones finish for `listen.drain_s`, then stop."""
        self._draining = True
        await self._processor.drain(self.config.listen.drain_s)
        if self.cascades.escalation is not None:
            await self.cascades.escalation.close()
        await self.mover.stop()
        if self.store is not None:
            await self.store.stop()
        await self._kv_following.stop()
        if self.recorder.log is not None:
            await self.recorder.log.stop()
        await self._observers.stop()
        if self._admin is not None:
            await self._admin.cleanup()

    async def reload(self) -> None:
        """Put the file's present content in force, or keep the old one and say why."""
        try:
            config = load(self._path)
            pool = make_pool(config, self._path.parent, self.router.pool)
            self._use_cascades(config)
        except UserError as error:
            self.recorder.reloads_refused += 1
            log.error("the new configuration is refused, the old one stays", reason=str(error))
            return
        fixed = [name for name in _FIXED_SECTIONS if getattr(config, name) != getattr(self.config, name)]
        if fixed:
            log.warning("these sections need a restart to change", sections=fixed)
        old_addresses = set(self.router.pool.by_address)
        self.router.pool = pool
        tuned_alike = (config.policy, config.tuner) == (self.config.policy, self.config.tuner)
        self.router.fallbacks = config.gateway.fallbacks
        self.learner.forget_all_but(pool.endpoints)
        self.learner.apply(pool.endpoints)
        self.config = config
        self.router.planner.rules, self.mover.deadlines = _rules(config.migration), _deadlines(config.migration)
        self._use_reuse()
        if not tuned_alike:
            self._use_policy()
        await self._observers.replace(config.observe, pool.endpoints)
        await self._kv_following.follow(config, pool.endpoints)
        for address in old_addresses - set(pool.by_address):
            self.router.index.forget(address)
            self.router.sessions.forget_host(address)
            self.router.planner.forget(address)
        if self.store is not None:
            for endpoint in pool.endpoints:
                endpoint.told_of_others(self.store.load.peers.of(endpoint.address))
        log.info("configuration reloaded", policy=config.policy.name, endpoints=len(pool.endpoints))

    async def watch(self, wanted: asyncio.Event) -> None:
        """Reload whenever the file changes and when `wanted` is set. Runs until cancelled."""
        seen = _stamp(self._path)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):  # not wait_for: Python 3.11's may swallow a cancellation
                    await wanted.wait()
            stamp = _stamp(self._path) or seen  # None: the file is being replaced this moment
            if wanted.is_set() or stamp != seen:
                wanted.clear()
                seen = stamp
                await self.reload()

    async def tend(self) -> None:
        """What the request path leaves for later, once a second. Runs until cancelled."""
        trials = TrialLog()
        while True:
            await asyncio.sleep(_TEND_S)
            self.router.sessions.expire(time.perf_counter())
            self._kv_following.restarted(self.router.pool.endpoints)
            trials.tell(self.router)
            for endpoint in self.router.pool.endpoints:
                capacity_tokens = endpoint.reported.kv_capacity_tokens
                if capacity_tokens is not None:
                    self.router.index.set_capacity(endpoint.address, capacity_tokens // BLOCK_TOKENS)

    def _use_policy(self) -> None:
        policy = _policy(self.config)
        self.router.use(policy, tuner_of(self.config, policy))

    async def report_faults(self) -> None:
        """Log our own faults, which the request path only counts. Runs until cancelled."""
        told = (0, 0, 0)
        while True:
            await asyncio.sleep(_FAULT_LOG_S)
            told = self._tell_faults(told)

    def _tell_faults(self, told: tuple[int, int, int]) -> tuple[int, int, int]:
        reuse = self.reuse.reuse.counts
        counts = self.router.policy_failures, self.recorder.stream_failures, reuse.failures
        causes = self.router.last_policy_failure, self.recorder.last_stream_failure, reuse.last_failure
        for stage, before, now, cause in zip(("policy", "stream", "reuse"), told, counts, causes, strict=True):
            if now > before:
                log.error("requests went on without advice", stage=stage, failures=now - before, last_cause=cause)
        return counts

    def _told_of_others(self, address: str, load: Load) -> None:
        endpoint = self.router.pool.by_address.get(address)
        if endpoint is not None:
            endpoint.told_of_others(load)

    def _use_reuse(self) -> None:
        rules = {
            name: ReuseRule(frozenset(rule.always), frozenset(rule.on_request), rule.formats)
            for name, rule in self.config.reuse.items()
        }
        self.reuse.use(rules, rules.get(ANY_ROUTE))

    def _escalation(self) -> Escalation:
        host, port = host_and_port(self.config.gateway.listen)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return Escalation(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False),
            f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
            self.cascades.counts,
            time.perf_counter,
            tuple(name.lower() for name in self.config.sessions.headers),
            (self.config.tenants.header or "").lower(),
        )

    def _use_cascades(self, config: Config) -> None:
        """Routes, judges and thresholds, all at once. Raises UserError for a judge that cannot be loaded."""
        cascades, escalation, folder = config.cascades(), self.cascades.escalation, self._path.parent
        assert escalation is not None
        escalation.judges = load_judges(cascades, folder, escalation.session)
        escalation.sample_files = {
            name: SampleFile(folder / route.sample.file) for name, route in cascades.items() if route.sample is not None
        }
        self.cascades.routes = {name: route.route(name) for name, route in cascades.items()}

    def _bootstraps(self) -> dict[str, str]:
        configured = zip(self.config.pool.endpoints, self.router.pool.endpoints, strict=True)
        return {e.address: c.kv_transfer.bootstrap for c, e in configured if c.kv_transfer and c.kv_transfer.bootstrap}

    def _is_decided(self, session: bytes) -> bool:
        """Whether the shared store has settled the session's last binding; while it is gone, ours holds."""
        store = self.store
        return store is None or not store.link.up or not store.sessions.waits(session)

    def _shown_config(self) -> dict[str, object]:
        shown: dict[str, object] = self.config.model_dump(mode="json")
        return shown


def _rules(migration: Migration | None) -> Rules:
    if migration is None:
        return NO_HOST_IS_HOT
    return msgspec.convert(migration.model_dump(include=set(Rules.__struct_fields__)), Rules)


def _deadlines(migration: Migration | None) -> Deadlines:
    if migration is None:
        return Deadlines()
    return Deadlines(export_s=migration.export_s, import_s=migration.import_s)


def _policy(config: Config) -> Any:
    return build_policy(config.policy.name, config.policy.parameters())


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


async def run(path: Path, started: asyncio.Event | None = None) -> None:
    """Serve the configuration at `path` until SIGTERM or SIGINT, and set `started` once that has begun.

    Raises UserError if it cannot start.
    """
    sidecar = Sidecar(path)
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number, event in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, reload)):
        loop.add_signal_handler(number, event.set)
    await sidecar.start()
    if started is not None:
        started.set()
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(sidecar.watch(reload)),
            tasks.create_task(sidecar.report_faults()),
            tasks.create_task(sidecar.tend()),
        ]
        await stop.wait()
        log.info("draining", at_most_s=sidecar.config.listen.drain_s)
        await sidecar.drain()
        for task in beside:
            task.cancel()
    log.info("stopped")
