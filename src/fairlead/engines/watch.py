"""The watch on one engine: three loops off the request path that write what they see to its `Endpoint`.

- `/metrics`, often: the engine's report, and whether it has restarted.
- its page of health: whether the engine is there. After its first success, and after a restart, what the server says
of itself (`/version` or the like) and `/v1/models`.
- a TCP connection, seldom: the round trip. The kernels shake hands, so a busy engine adds nothing, and the least of the
last few counts, because the network adds delay now and then.

At most one request of each loop is under way. A failure is counted; an exception of ours is counted and logged.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import structlog

from fairlead.api.paths import MODELS
from fairlead.config import Observe
from fairlead.core.endpoint import Endpoint
from fairlead.core.health import OTHER_MODEL
from fairlead.core.reported import EngineReport, aged, following
from fairlead.dialects import DIALECTS, Dialect
from fairlead.engines.ask import Answer, Connection, UnansweredError, connect_ms
from fairlead.engines.identity import read_identity, with_models
from fairlead.engines.metrics_text import MOST_BYTES, read_metrics
from fairlead.engines.restarts import Restarts

_SMALL_BYTES: Final = 64 * 1024  # limit of a probe's answer
_INFO_BYTES: Final = 1 << 20  # SGLang's /server_info has 40 KB, and a page of models a line for each adapter
_JITTER: Final = 0.2  # so that sidecars started together spread their requests
_RTT_AFTER_S: Final = 0.5
_MODELS_S: Final = 5.0  # between two questions for models: adapters are loaded while an engine runs
_RTTS: Final = 5  # of which the least counts
_FIRST_RTTS: Final = 3  # measured in a row at first, so that the first value does not depend on one sample
_LOG_FAULTS_EVERY_S: Final = 60.0
_MOST_SHARE: Final = 0.02  # of this process's time, for the metrics of one engine: they may have megabytes
_SHOWN_MODELS: Final = 4
_SEVERAL: Final = (
    "several engines answer at one address, so that neither caches nor restarts can be told; list each at its own"
)

_OTHER_MODEL_S: Final = 60.0  # for which an engine without its model gets nothing, before requests try it again

_SAYS_SO: Final = ("connect", "status")  # that an engine is gone; one that is busy, or cut off, is silent
_HALF: Final = "it does only the prefill or the decoding of a request; start it without --disaggregation-mode"

log = structlog.get_logger("fairlead.engines")


@dataclass(slots=True)
class WatchCounts:
    """Since the watch began. Failures by reason: timeout, connect, protocol, too_large, status, foreign, several."""

    scrapes: int = 0
    scrape_failures: dict[str, int] = field(default_factory=dict)
    probes: int = 0
    probe_failures: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    faults: int = 0  # our own exceptions


class Watch:
    """`run` watches until it is cancelled. `observe` may be replaced between two rounds."""

    def __init__(self, endpoint: Endpoint, observe: Observe, clock_s: Callable[[], float]) -> None:
        self.endpoint = endpoint
        self.observe = observe
        self.counts = WatchCounts()
        self._clock_s = clock_s
        # One for each loop: a hanging request must not delay the other loops.
        access = endpoint.spec.access
        self._for_health, self._for_metrics = (Connection(endpoint.address, access) for _ in range(2))
        self._restarts = Restarts()
        self._told_of_several = False
        self._reading_ms = 0.0  # what the last page took
        self._rtts_ms: deque[float] = deque(maxlen=_RTTS)
        self._identified = -1  # the generation for which `endpoint.identity` was read
        self._listed_s = 0.0  # when its models were asked last
        self._without_model_s = 0.0  # when it was last seen to refuse its model
        self._logged = (endpoint.health.ejections, endpoint.health.returns)
        self._logged_pauses = endpoint.hops.outs
        self._fault_logged_s: float | None = None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._repeat(self._check_health, self._health_pause_ms))
                loops.create_task(self._repeat(self._scrape, self._metrics_pause_ms))
                # Not during the first round: the first round trip measured would be our own queue.
                await asyncio.sleep(random.uniform(_RTT_AFTER_S / 2, _RTT_AFTER_S))
                loops.create_task(self._repeat(self._measure_rtt, lambda: self.observe.rtt_interval_ms))
        finally:
            for connection in (self._for_health, self._for_metrics):
                connection.close()

    async def _repeat(self, work: Callable[[], Awaitable[None]], interval_ms: Callable[[], float]) -> None:
        while True:
            started_s = self._clock_s()
            try:
                await work()
            except Exception:  # any error: the next round comes anyway
                self._count_fault()
            interval_s = interval_ms() / 1e3 * random.uniform(1 - _JITTER, 1 + _JITTER)
            took_s = max(0.0, self._clock_s() - started_s)
            await asyncio.sleep(max(interval_s - took_s, interval_s * _JITTER))

    def _health_pause_ms(self) -> float:
        observe = self.observe
        return min(observe.interval_ms, observe.health_interval_ms) if self._doubtful() else observe.health_interval_ms

    def _metrics_pause_ms(self) -> float:
        return max(self.observe.interval_ms, self._reading_ms / _MOST_SHARE)

    def _doubtful(self) -> bool:
        return self.endpoint.health.doubtful or self._identified != self.endpoint.generation

    @property
    def _dialect(self) -> Dialect:
        return DIALECTS[self.endpoint.spec.engine]

    async def _ask(self, connection: Connection, path: str, most_bytes: int = _SMALL_BYTES) -> Answer:
        connection.reach(self.endpoint.spec.access)  # a reload may have changed it
        return await connection.ask(path, self.observe.timeout_ms / 1e3, most_bytes)

    # ---- health -------------------------------------------------------------------------------------------------

    async def _check_health(self) -> None:
        self.counts.probes += 1
        asked_s = self._clock_s()
        try:
            answer = await self._ask(self._for_health, self._dialect.health_path)
        except UnansweredError as error:
            reason: str | None = error.reason
        else:
            reason = "status" if answer.status >= 500 else None  # 404: no such page, but the server answers
        if reason is not None:
            _count(self.counts.probe_failures, reason)
        self._probed(reason is None, asked_s, says_so=reason in _SAYS_SO)
        if reason is None and self._identified != self.endpoint.generation:
            await self._identify()
        elif reason is None and (self.endpoint.models_are_doubted or self._clock_s() - self._listed_s >= _MODELS_S):
            await self._list_models()

    def _probed(self, answered: bool, asked_s: float, *, says_so: bool = False) -> None:
        endpoint, to_eject = self.endpoint, self.observe.failures_to_eject
        was_gone = not endpoint.health.answers
        endpoint.probed(answered, self._clock_s(), to_eject, asked_s=asked_s, says_so=says_so)
        if answered:
            self._restarts.probe_answered(was_gone=was_gone)
        self._log_changes()

    def _restarted(self) -> None:
        self.endpoint.generation += 1
        self.counts.restarts += 1
        log.info("engine restarted", endpoint=self.endpoint.address, generation=self.endpoint.generation)

    def _log_changes(self) -> None:
        """Log changes of health since the last call, including those made by the request path, which does not log."""
        health, hops = self.endpoint.health, self.endpoint.hops
        if hops.outs != self._logged_pauses:
            self._logged_pauses = hops.outs
            log.warning("engine is asked for no prompts: they came to nothing", endpoint=self.endpoint.address)
        logged, self._logged = self._logged, (health.ejections, health.returns)
        if self._logged == logged:
            return
        if not health.healthy:
            cause = "requests fail" if health.answers else "probes fail"
            log.warning("engine ejected", endpoint=self.endpoint.address, cause=cause)
        else:
            log.warning("engine is back", endpoint=self.endpoint.address)

    async def _identify(self) -> None:
        generation = self.endpoint.generation
        try:
            info = await self._ask(self._for_health, self._dialect.info_path, _INFO_BYTES)
            models = await self._ask(self._for_health, MODELS, _INFO_BYTES)
        except UnansweredError:
            return  # the next probe asks again
        if models.status >= 500 or info.status >= 500:
            return
        identity = read_identity(self._dialect, info, models, self.endpoint.model)
        was_whole, configured = self.endpoint.identity.serves_alone, not self.endpoint.spec.answers_alone
        if was_whole and not identity.serves_alone and not configured:
            log.warning("engine left out", endpoint=self.endpoint.address, cause=_HALF)
        self.endpoint.identified(identity)
        self._identified = generation
        self._listed_s = self._clock_s()

    async def _list_models(self) -> None:
        was_doubted = self.endpoint.models_are_doubted
        self._listed_s, self.endpoint.models_are_doubted = self._clock_s(), False
        try:
            page = await self._ask(self._for_health, MODELS, _INFO_BYTES)
        except UnansweredError:
            return
        if page.status == 200:
            now = with_models(self.endpoint.identity, self._dialect, page, self.endpoint.model)
            if now.models:  # else it is not a list
                self.endpoint.identified(now)
                self._look_for_its_model(was_doubted=was_doubted)

    def _look_for_its_model(self, *, was_doubted: bool) -> None:
        """An engine that answers 404 and does not list its model refuses all requests for it, in no time, so that it
        would get more of them than any. Some answer to names that they do not list: those serve.
        """
        endpoint, now_s = self.endpoint, self._clock_s()
        has_it = endpoint.model in endpoint.identity.models or endpoint.serves(now_s)
        if was_doubted and not has_it:
            self._without_model_s = now_s
            if OTHER_MODEL not in endpoint.health.withheld:
                listed = ", ".join(endpoint.identity.models[:_SHOWN_MODELS])
                log.warning("engine left out: it has another model", endpoint=endpoint.address, lists=listed)
            endpoint.health.withhold(OTHER_MODEL)
        elif OTHER_MODEL in endpoint.health.withheld and (has_it or now_s - self._without_model_s >= _OTHER_MODEL_S):
            endpoint.health.withhold(OTHER_MODEL, active=False)

    # ---- metrics ------------------------------------------------------------------------------------------------

    async def _scrape(self) -> None:
        endpoint = self.endpoint
        if not endpoint.health.answers:
            self._age()
            return
        self.counts.scrapes += 1
        asked_s = self._clock_s()
        try:
            answer = await self._ask(self._for_metrics, self._dialect.metrics_path, MOST_BYTES)
        except UnansweredError as error:
            self._scrape_failed(error.reason)
            if error.reason == "connect":  # nothing listens at the port: no need to wait for /health
                self._probed(False, asked_s, says_so=True)
            return
        if answer.status != 200:
            self._scrape_failed("status")
            return
        began_s = time.perf_counter()
        report = read_metrics(answer.body, self._clock_s())
        self._reading_ms = (time.perf_counter() - began_s) * 1e3
        if report is None:
            self._scrape_failed("foreign")
            return
        self._reported(report)

    def _reported(self, report: EngineReport) -> None:
        endpoint = self.endpoint
        process = self._restarts.page_came(endpoint.report, report)
        if process == "restarted":
            self._restarted()
        elif process == "several":
            self._found_several()
        endpoint.reported(following(endpoint.report, report, self.observe.stale_ms / 1e3))

    def _found_several(self) -> None:
        _count(self.counts.scrape_failures, "several")
        if not self._told_of_several:
            self._told_of_several = True
            log.warning(_SEVERAL, endpoint=self.endpoint.address)

    def _scrape_failed(self, reason: str) -> None:
        _count(self.counts.scrape_failures, reason)
        if reason in ("status", "foreign") and self._restarts.has_no_page():
            self._restarted()
        self._age()

    def _age(self) -> None:
        self.endpoint.report = aged(self.endpoint.report, self._clock_s(), self.observe.stale_ms / 1e3)

    # ---- round trip ---------------------------------------------------------------------------------------------

    async def _measure_rtt(self) -> None:
        rtts_ms, endpoint = self._rtts_ms, self.endpoint
        is_first = not rtts_ms
        try:
            for _ in range(_FIRST_RTTS if is_first else 1):
                rtts_ms.append(await connect_ms(endpoint.address, self.observe.timeout_ms / 1e3))
        except UnansweredError:
            if not (is_first and rtts_ms):  # no answer says nothing about the network: keep the value
                return
        alpha = 1.0 if is_first else self.observe.rtt_alpha
        endpoint.rtt_ms += alpha * (min(rtts_ms) - endpoint.rtt_ms)
        endpoint.rtt_spread_ms = min(median(rtts_ms) - min(rtts_ms), endpoint.rtt_ms)

    def _count_fault(self) -> None:
        self.counts.faults += 1
        now_s = self._clock_s()
        if self._fault_logged_s is None or now_s - self._fault_logged_s >= _LOG_FAULTS_EVERY_S:
            self._fault_logged_s = now_s
            log.exception("watching an engine failed", endpoint=self.endpoint.address, faults=self.counts.faults)


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
