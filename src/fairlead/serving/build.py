"""The parts of a sidecar, made and joined. Nothing runs yet, and the pool is empty until `InForce.apply`.

Settings read here are fixed until the process ends: `serving.reload` warns where a new one differs.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from fairlead.addresses import host_and_port
from fairlead.admission.admission import Admission
from fairlead.admission.rates import RateLimits
from fairlead.cascade.counts import CascadeCounts
from fairlead.cascade.escalation import Escalation
from fairlead.config import Config
from fairlead.context.reuse import ContextReuse
from fairlead.core.load import Load
from fairlead.core.pool import Pool
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.router import Router
from fairlead.core.sessions import SessionTable
from fairlead.decision_log import open_log
from fairlead.engines.kv_following import KvFollowing
from fairlead.engines.observer import Observers
from fairlead.extproc.body_reader import BodyReader
from fairlead.extproc.cascade import RequestCascades
from fairlead.extproc.held_bytes import DEFAULT_MOST_BYTES, HeldBytes
from fairlead.extproc.recorder import Recorder
from fairlead.extproc.reuse import RequestReuse
from fairlead.extproc.services import Services
from fairlead.extproc.waiting_room import WaitingRoom
from fairlead.migration.mover import Mover
from fairlead.policies import build_policy
from fairlead.redis import open_store
from fairlead.redis.password import StorePassword
from fairlead.tracing import open_tracer

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def build(config: Config, folder: Path) -> Services:
    """The services of `config`, whose paths are relative to `folder`. Raises UserError where a part cannot be made."""
    clock_s = time.perf_counter
    sessions, prefixes = config.sessions, config.prefixes
    tenant_header = (config.tenants.header or "").lower()
    router = Router(
        Pool((), {}),
        build_policy(config.policy.name, config.policy.parameters()),
        fallbacks=config.gateway.fallbacks,
        rng=Random(),
        index=PrefixIndex(max_bytes=prefixes.max_bytes, ttl_s=prefixes.ttl),
        sessions=SessionTable(ttl_s=sessions.ttl, max_entries=sessions.max_entries),
    )

    def peers_report(address: str, load: Load) -> None:
        endpoint = router.pool.by_address.get(address)
        if endpoint is not None:
            endpoint.peers_reported(load, clock_s())

    rates, admission = RateLimits(), Admission(router)
    store = open_store(
        sessions.store,
        StorePassword(sessions.store_password_path(folder)),
        router,
        apply=peers_report,
        rates=rates,
        admission=admission,
        clock_s=clock_s,
    )
    escalation = Escalation(
        url_of_gateway(config),
        CascadeCounts(),
        clock_s,
        tuple(name.lower() for name in sessions.headers),
    )
    recorder = Recorder()
    return Services(
        config=config,
        clock_s=clock_s,
        router=router,
        mover=Mover(router, clock_s, store.is_decided),
        reuse=RequestReuse(ContextReuse(clock_s=time.thread_time)),
        cascades=RequestCascades(escalation),
        observers=Observers(config.observe, (), clock_s),
        kv_following=KvFollowing(router.index, clock_s),
        store=store,
        log=open_log(config.decisions, folder, lambda: router.pool.models),
        tracer=open_tracer(config.tracing, clock_s),
        session_headers=tuple(name.lower().encode() for name in sessions.headers),
        tenant_header=tenant_header.encode(),
        separates_caches=config.separates_caches,
        max_body_bytes=config.gateway.max_body_bytes,
        recorder=recorder,
        waiting=WaitingRoom(admission, clock_s, recorder.background_failed),
        rates=rates,
        reader=BodyReader(),
        held=HeldBytes(most_held_bytes(config)),
    )


def most_held_bytes(config: Config) -> int:
    """For request bodies: those that arrive, and those that wait for an engine."""
    waiting = 0 if config.admission is None else 2 * config.admission.max_bytes
    return max(DEFAULT_MOST_BYTES, 4 * config.gateway.max_body_bytes, waiting)


def url_of_gateway(config: Config) -> str:
    """The URL at which the sidecar's own requests go through Envoy."""
    host, port = host_and_port(config.gateway.listen)
    host = _ANY_HOST.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
