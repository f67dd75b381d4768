"""The configuration in force: how one is applied, at the start and at every reload."""

from __future__ import annotations

import asyncio
import contextlib
import random
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from fairlead.cascade.load_judges import load_judges
from fairlead.cascade.samples import SampleFile
from fairlead.config import ANY_ROUTE, Config, Migration
from fairlead.core.capability import CapabilityFile
from fairlead.core.migration import NOTHING_IS_HOT, Rules
from fairlead.core.pool import Pool
from fairlead.core.task_rules import TaskRules
from fairlead.discovery import Discovery
from fairlead.discovery.own import OwnAddresses
from fairlead.discovery.rules import NO_RULES
from fairlead.discovery.sources import sources
from fairlead.engines.kv_following import require_library
from fairlead.engines.kv_transfer import Deadlines
from fairlead.errors import UserError
from fairlead.extproc.client_keys import ClientKeys
from fairlead.extproc.reuse import ReuseRule
from fairlead.extproc.services import Services
from fairlead.gateway import EndpointDiscovery
from fairlead.policies import build_policy
from fairlead.serving.access import check_access
from fairlead.serving.admission import MOST_LEVELS, bounded, longest_wait_s, naming_of, rate_rules_of, rules_of
from fairlead.serving.build import most_held_bytes, url_of_gateway
from fairlead.serving.confirmed import hosts_of, withhold_unconfirmed
from fairlead.serving.membership import Member, Membership
from fairlead.serving.pool import has_names, make_pool, resolved
from fairlead.serving.tuning import tuner_of

log = structlog.get_logger("fairlead")

_NAMES_S: Final = 5.0  # between two looks at names: what keeps TTLs is the machine's resolver
_LOOK_AGAIN_S: Final = 0.1  # while time alone may change the pool


class InForce:
    """Puts configurations and what is discovered into `services`; paths are relative to `folder`."""

    def __init__(self, services: Services, folder: Path) -> None:
        self._services = services
        self._folder = folder
        self._decides_by: object = None  # the sections from which policy and tuner are built
        self._finds_by: object = None  # the section that names the sources
        self._changing = asyncio.Lock()  # between a reload and a change of what is discovered
        self._pool_changed = asyncio.Event()
        self.known = asyncio.Event()  # `services.pool_is_known`
        self.listener: Callable[[], None] = lambda: None  # called in the step that puts a pool in force
        services.discovery = Discovery(self._pool_changed.set, services.clock_s)
        services.envoys = EndpointDiscovery(lambda: withhold_unconfirmed(services), services.clock_s)
        self._addresses: list[str] | None = None  # of endpoints that are configured by name, where they changed
        self._members: list[Member] | None = None  # in the pool
        self._capability_files: dict[str, CapabilityFile] = {}  # as they were when the configuration was applied
        self._rules = NO_RULES  # of requests, in force
        self._membership = Membership(services.discovery, self._pool_changed.set, services.clock_s)

    async def apply(self, config: Config) -> None:
        """Apply `config`. Raises UserError, and then nothing has changed.

        Endpoints that stay keep all that is known about them, and a policy with the same parameters keeps its tuner.
        """
        async with self._changing:
            self._services.pool_is_known &= self.known.is_set() or not config.discovery.is_used
            await self._apply(config)
        listening = (config.listen.grpc, config.listen.admin, config.gateway.listen, *config.gateway.processors)
        self._services.discovery.own = OwnAddresses(listening)
        if self._finds_by != config.discovery:
            self._finds_by = config.discovery
            await self._services.discovery.follow(sources(config.discovery, self._folder))

    async def follow(self) -> None:
        """Keep the pool as discovery finds it. Runs until cancelled."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S if self._membership.is_waiting else None):
                        await self._pool_changed.wait()
                self._pool_changed.clear()
                try:
                    await self._change_pool()
                except Exception:  # the pool stays as it was; the next change tries again
                    self._services.recorder.background_failed(traceback.format_exc(limit=-8))
        finally:
            await self._services.discovery.stop()
            await self._membership.stop()

    async def follow_names(self) -> None:
        """Look up the names in `pool.endpoints` again and again. Runs until cancelled."""
        failing = ""
        while True:
            await asyncio.sleep(_NAMES_S * random.uniform(0.8, 1.2))
            config = self._services.config
            if not has_names(config):
                continue
            try:
                addresses = await asyncio.to_thread(resolved, config, self._addresses_of(config))
            except UserError as error:  # the last addresses stay
                if str(error) != failing:
                    failing = str(error)
                    log.error("a name of an engine cannot be looked up now; its last address stays", reason=failing)
                continue
            failing = ""
            if config is self._services.config and addresses != self._addresses_of(config):
                log.info("names of engines have other addresses", addresses=addresses)
                self._addresses, self._members = addresses, None
                self._pool_changed.set()

    def _addresses_of(self, config: Config) -> list[str]:
        """In force, of the endpoints that are configured, which come first in the pool."""
        return [endpoint.address for endpoint in self._services.router.pool.endpoints[: len(config.pool.endpoints)]]

    async def _change_pool(self) -> None:
        async with self._changing:
            services = self._services
            config, current = services.config, services.router.pool
            members = self._membership.members(current, config.pool.access)
            known, rules = self._membership.is_known, services.discovery.rules()
            if members == self._members and known == services.pool_is_known and rules == self._rules:
                return
            self._members = members
            addresses = self._addresses or self._addresses_of(config)
            pool = make_pool(config, self._folder, current, members, addresses, rules.rewrites, self._capability_files)
            await self._use(config, pool)

    async def _apply(self, config: Config) -> None:
        services = self._services
        router, escalation = services.router, services.cascades.escalation
        cascades = config.cascades()
        judges = load_judges(cascades, self._folder, escalation.session)
        policy = build_policy(config.policy.name, config.policy.parameters())
        tuner = tuner_of(config, policy)
        require_library(config)
        check_access(config)
        keys = None if config.clients is None else self._folder / config.clients.keys
        ClientKeys().use(keys)  # it may not be usable
        files: dict[str, CapabilityFile] = {}
        pool = make_pool(
            config,
            self._folder,
            router.pool,
            self._membership.members(router.pool, config.pool.access),
            rewrites=services.discovery.rules().rewrites,
            files=files,
        )  # the last that may fail

        services.config, self._addresses, self._capability_files = config, None, files
        services.clients.use(keys)
        router.fallbacks = config.gateway.fallbacks
        if self._decides_by != (config.policy, config.tuner):
            self._decides_by = config.policy, config.tuner
            router.use(policy, tuner)
        services.tasks = TaskRules(config.tasks_known(), config.tasks.routes, config.tasks.with_tools or "")
        services.held.most_bytes = most_held_bytes(config)
        services.budget.answers_per_second = config.observe.answers_per_second
        services.budget.messages_per_second = config.observe.messages_per_second
        router.planner.rules = _rules(config.migration)
        services.mover.deadlines = _deadlines(config.migration)
        services.mover.kv_bytes_per_token = _kv_bytes_per_token(config)
        reuse_rules = {
            name: ReuseRule(frozenset(rule.always), frozenset(rule.on_request), rule.formats)
            for name, rule in config.reuse.items()
        }
        services.reuse.use(reuse_rules, reuse_rules.get(ANY_ROUTE))
        escalation.gateway_url = url_of_gateway(config)
        inner_headers = tuple(name.lower() for name in config.gateway.inner_headers)
        tenant_header = (config.tenants.header or "").lower()
        services.inner_headers = tuple(name.encode() for name in inner_headers)
        escalation.passed_on = (*inner_headers, tenant_header) if tenant_header else inner_headers
        escalation.judges = judges
        escalation.sample_files = {
            name: SampleFile(self._folder / route.sample.file)
            for name, route in cascades.items()
            if route.sample is not None
        }
        services.cascades.routes = {name: route.route(name) for name, route in cascades.items()}
        await self._use(config, pool)

    async def _use(self, config: Config, pool: Pool) -> None:
        """Decide over `pool` from now on, and forget everywhere the endpoints that are gone."""
        services = self._services
        router = services.router
        gone = set(router.pool.by_address) - set(pool.by_address)
        router.pool = pool
        services.pool_is_known |= self._membership.is_known and config.discovery.is_used
        if services.pool_is_known:
            self.known.set()
            services.envoys.publish(hosts_of(pool))
            listed = {each.address for each in services.discovery.endpoints()}
            # A file may name engines that left before this sidecar came: another may come to their address.
            router.planner.draining &= listed.union(pool.by_address, services.store.draining())
        withhold_unconfirmed(services)
        found = services.discovery.rules()
        objectives = bounded(found.priorities)
        if found != self._rules and objectives != found.priorities:
            log.error("too many priorities: the lowest InferenceObjectives share one", most=MOST_LEVELS)
        self._rules = found
        services.rewrites = found.rewrites.under(config.splits(), config.routes)
        rules = rules_of(config.admission, objectives)
        services.waiting.use(rules, naming_of(config, objectives), longest_wait_s(rules))
        services.rates.use(rate_rules_of(config.rate_limits), services.clock_s())
        bootstraps = {e.address: e.spec.kv_bootstrap for e in pool.endpoints if e.spec.kv_bootstrap}
        services.mover.bootstraps = services.prefills.bootstraps = bootstraps
        services.prefills.accesses = {endpoint.address: endpoint.spec.access for endpoint in pool.endpoints}
        services.learner.forget_all_but(pool.endpoints)
        services.learner.apply(pool.endpoints)
        self.listener()
        services.budget.forget_all_but(pool.by_address)
        if gone:
            services.recorder.forget_all_but(pool.by_address)
            router.answered.forget(gone)
        for address in gone:
            router.index.remove(address)
            router.sessions.forget_endpoint(address)
            router.planner.forget(address)
        for endpoint in pool.endpoints:
            endpoint.peers_reported(services.store.load_of_peers(endpoint.address), services.clock_s())
        await services.observers.replace(config.observe, pool.endpoints)
        await services.kv_following.follow(config, pool.endpoints)


def _rules(migration: Migration | None) -> Rules:
    if migration is None:
        return NOTHING_IS_HOT
    return msgspec.convert(migration.model_dump(include=set(Rules.__struct_fields__)), Rules)


def _deadlines(migration: Migration | None) -> Deadlines:
    if migration is None:
        return Deadlines()
    return Deadlines(export_s=migration.export_s, import_s=migration.import_s)


def _kv_bytes_per_token(config: Config) -> Mapping[str, int]:
    known = {name: model.kv_bytes_per_token for name, model in config.pool.models.items()}
    return {name: size for name, size in known.items() if size is not None}
