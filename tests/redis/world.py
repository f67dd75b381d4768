"""Sidecars that share a Redis server, as far as a store needs one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

from fairlead.admission.admission import Admission
from fairlead.admission.rates import RateLimits
from fairlead.core.facts import session_key
from fairlead.core.load import Load
from fairlead.core.migration import Rules
from fairlead.core.peers import NO_LOAD
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.core.sessions import SessionTable
from fairlead.policies import build_policy
from fairlead.redis.password import StorePassword
from fairlead.redis.store import SharedStore
from tests.core.world import make_endpoint

WITHIN_S = 60.0  # ends a test that would hang
TURN_S = 0.001


def key(name: object) -> bytes:
    return session_key(str(name).encode())


class Sidecar:
    """Two endpoints, a session table and a store."""

    def __init__(
        self,
        url: str,
        ttl_s: int = 3600,
        max_entries: int = 100_000,
        password: StorePassword | None = None,
        restored: Iterable[str] = (),
    ) -> None:
        self.table = SessionTable(ttl_s=ttl_s, max_entries=max_entries)
        self.endpoints = {address: make_endpoint(address, "m") for address in ("a:1", "b:1")}
        self.others: dict[str, Load] = {}
        router = Router(
            Pool(tuple(self.endpoints.values()), {}),
            build_policy("random", {}),
            fallbacks=0,
            rng=Random(1),
            sessions=self.table,
            rules=Rules(),
        )
        self.planner = router.planner
        self.planner.draining.update(restored)  # as a state file says
        self.rates = RateLimits()
        self.admission = Admission(router)
        self.store = SharedStore(
            url,
            password or StorePassword(),
            router,
            apply=self.others.__setitem__,
            rates=self.rates,
            admission=self.admission,
            clock_s=time.perf_counter,
        )
        self.store.start()

    def host(self, name: object) -> str | None:
        return self.table.endpoint_of(key(name), time.perf_counter())

    def bind(self, name: object, address: str) -> None:
        self.table.bind(key(name), address, time.perf_counter())

    def turn(self, name: object, choice: str) -> str:
        """What the router does with a request of session `name`, where the policy would choose `choice`."""
        host = self.host(name)
        if host is None:
            self.bind(name, choice)
        return host or choice

    def load_of_others(self, address: str) -> Load:
        return self.others.get(address, NO_LOAD)

    def up(self) -> bool:
        return self.store.link.up

    def idle(self) -> bool:
        return self.up() and not self.store.sessions.pending


class Waited(NamedTuple):
    """How long a wait was, in seconds: on the clock, and without the time in which a busy machine let others run."""

    clock_s: float
    running_s: float


async def until(condition: Callable[[], object], what: str) -> Waited:
    """Wait for what other processes bring about. A turn of the loop counts as running for twice its pause at most."""
    began_s = last_s = time.perf_counter()
    running_s = 0.0
    while not condition():
        assert last_s < began_s + WITHIN_S, f"not so within {WITHIN_S:g} s: {what}"
        await asyncio.sleep(TURN_S)
        now_s = time.perf_counter()
        running_s += min(now_s - last_s, 2 * TURN_S)
        last_s = now_s
    return Waited(last_s - began_s, running_s)
