"""Upkeep and logging that the request path leaves to a background task."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from fairlead.discovery.following import FailureLog
from fairlead.errors import UserError
from fairlead.extproc.services import Services
from fairlead.serving.confirmed import Unserved, hosts_of, withhold_unconfirmed
from fairlead.serving.memory import MemoryReturn
from fairlead.serving.tuning import TrialLog

_TEND_S: Final = 1.0
_FAULT_LOG_S: Final = 5.0

log = structlog.get_logger("fairlead")


async def tend(services: Services) -> None:
    """Upkeep of the tables, once a second. Runs until cancelled."""
    trials, sources, unserved = TrialLog(), FailureLog(services.discovery), Unserved(services)
    memory = MemoryReturn()

    def once() -> Iterator[None]:
        router = services.router
        if (renewed := router.pool.renewed()) is not router.pool:
            router.pool = renewed
            services.waiting.pool_changed()
            services.discovery.look_again()  # an engine may serve another model
            if services.pool_is_known:
                services.envoys.publish(hosts_of(renewed))
        router.sessions.expire(services.clock_s())
        router.trim(services.clock_s())
        router.others.look(router.pool.endpoints)
        yield
        services.learner.read_reports(router.pool)
        yield
        yield from services.learner.settling(lambda: router.pool)
        services.kv_following.restarted(router.pool.endpoints)
        _read_keys(services)
        trials.log_new(router)
        sources.log_new(services.clock_s())
        withhold_unconfirmed(services)
        unserved.look()
        memory.look(router.decided)
        for endpoint in router.pool.endpoints:
            capacity_tokens = endpoint.prefix_capacity_tokens
            if capacity_tokens is not None:
                router.index.set_capacity_tokens(endpoint.address, capacity_tokens)

    await _every(_TEND_S, once, services)


def _read_keys(services: Services) -> None:
    try:
        if services.clients.refresh():
            log.info("the clients' keys were read again")
    except UserError as error:
        log.error("the clients' keys cannot be read; those of before still count", reason=str(error))


async def report_faults(services: Services) -> None:
    """Log internal faults, which the request path only counts. Runs until cancelled, and then logs the last ones."""
    faults = FaultLog(services)
    try:
        await _every(_FAULT_LOG_S, faults.log_new, services)
    finally:
        faults.log_new()


class FaultLog:
    """One line for each kind of fault that has happened since the last call of `tell`, with its last cause."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._logged: dict[str, int] = {}

    def log_new(self) -> None:
        router, recorder, reuse = self._services.router, self._services.recorder, self._services.reuse.reuse.counts
        for stage, failures, cause in (
            ("policy", router.policy_failures, router.last_policy_failure),
            ("stream", recorder.stream_failures, recorder.last_stream_failure),
            ("reuse", reuse.failures, reuse.last_failure),
            ("background", recorder.background_failures, recorder.last_background_failure),
        ):
            new = failures - self._logged.get(stage, 0)
            if new:
                log.error("internal errors; requests went on", stage=stage, failures=new, last_cause=cause)
            self._logged[stage] = failures


async def _every(seconds: float, once: Callable[[], Iterator[None] | None], services: Services) -> None:
    """Call `once` every `seconds`; an exception in it is counted, and the next call still happens.

    Where it is a generator, requests are served wherever it yields.
    """
    while True:
        await asyncio.sleep(seconds)
        try:
            for _ in once() or ():
                await asyncio.sleep(0)
        except Exception:
            services.recorder.background_failed(traceback.format_exc(limit=-8))
