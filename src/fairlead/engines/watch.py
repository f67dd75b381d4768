"""The watch on one engine: three loops beside the request path that write what they see on its `Endpoint`.

- `/metrics`, often: the engine's report, and whether it is another process than before.
- `/health`: whether the engine is there. After its first success, and after a restart, `/version` and `/v1/models`.
- `/version`, seldom: the round trip. It is the network's and not the engine's work: a constant text on vLLM, a 404 on
  SGLang, whose `/health` generates a token. Each measurement is the least of two requests, as the first may have to
  open the connection, and of the health probes since the last measurement: what a busy process adds must not count.

At most one request of each loop is under way. A failure is counted; an exception of ours is counted and logged.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog

from fairlead.config import Observe
from fairlead.core.pool import Endpoint
from fairlead.core.reported import EngineIdentity, EngineReport, aged, following, restarted
from fairlead.engines.ask import Answer, Connection, UnansweredError
from fairlead.engines.metrics_text import MOST_BYTES, read_metrics

_SMALL_BYTES: Final = 64 * 1024  # of every answer but metrics
_JITTER: Final = 0.2  # so that sidecars that start together do not ask together
_RTT_AFTER_S: Final = 0.5
_LOG_FAULTS_EVERY_S: Final = 60.0

log = structlog.get_logger("fairlead.engines")


@dataclass(slots=True)
class WatchCounts:
    """Since the watch began. Failures are by reason: timeout, connect, protocol, too_large, status, foreign."""

    scrapes: int = 0
    scrape_failures: dict[str, int] = field(default_factory=dict)
    probes: int = 0
    probe_failures: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    faults: int = 0  # exceptions of ours


class Watch:
    """`run` watches until it is cancelled. `observe` may be replaced between two rounds."""

    def __init__(self, endpoint: Endpoint, observe: Observe, clock_s: Callable[[], float]) -> None:
        self.endpoint = endpoint
        self.observe = observe
        self.counts = WatchCounts()
        self._clock_s = clock_s
        # One for each loop: what hangs on one must not delay another.
        self._for_health, self._for_metrics, self._for_rtt = (Connection(endpoint.address) for _ in range(3))
        self._rtt_known = False
        self._least_ms = math.inf  # of the health probes since the last round trip was measured
        self._was_gone = False  # it answers again, and nothing has told yet whether it restarted
        self._identified = -1  # the generation that `endpoint.identity` is of
        self._told = (endpoint.health.ejections, endpoint.health.returns)
        self._fault_logged_s: float | None = None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._repeat(self._check_health, self._health_pause_ms))
                loops.create_task(self._repeat(self._scrape, lambda: self.observe.interval_ms))
                # Not in the rush of the first round: the first round trip measured would be our own queue.
                await asyncio.sleep(random.uniform(_RTT_AFTER_S / 2, _RTT_AFTER_S))
                loops.create_task(self._repeat(self._measure_rtt, lambda: self.observe.rtt_interval_ms))
        finally:
            for connection in (self._for_health, self._for_metrics, self._for_rtt):
                connection.close()

    async def _repeat(self, work: Callable[[], Awaitable[None]], interval_ms: Callable[[], float]) -> None:
        while True:
            started_s = self._clock_s()
            try:
                await work()
            except Exception:  # whatever it is, the next round is due
                self._count_fault()
            interval_s = interval_ms() / 1e3 * random.uniform(1 - _JITTER, 1 + _JITTER)
            took_s = max(0.0, self._clock_s() - started_s)
            await asyncio.sleep(max(interval_s - took_s, interval_s * _JITTER))

    def _health_pause_ms(self) -> float:
        observe = self.observe
        return min(observe.interval_ms, observe.health_interval_ms) if self._doubtful() else observe.health_interval_ms

    def _doubtful(self) -> bool:
        return self.endpoint.health.doubtful or self._identified != self.endpoint.generation

    async def _ask(self, connection: Connection, path: str, most_bytes: int = _SMALL_BYTES) -> Answer:
        return await connection.ask(path, self.observe.timeout_ms / 1e3, most_bytes)

    # ---- health -------------------------------------------------------------------------------------------------

    async def _check_health(self) -> None:
        self.counts.probes += 1
        try:
            answer = await self._ask(self._for_health, "/health")
        except UnansweredError as error:
            reason: str | None = error.reason
        else:
            reason = "status" if answer.status >= 500 else None  # 404: no such page, but somebody is there
            self._least_ms = min(self._least_ms, answer.took_ms)
        if reason is not None:
            _count(self.counts.probe_failures, reason)
        self._probed(reason is None)
        if reason is None and self._identified != self.endpoint.generation:
            await self._identify()

    def _probed(self, answered: bool) -> None:
        endpoint = self.endpoint
        was_gone = not endpoint.health.answers
        endpoint.probed(answered, self._clock_s(), self.observe.failures_to_eject)
        if was_gone and answered:
            self._came_back()
        self._tell_changes()

    def _came_back(self) -> None:
        """Down and up again may have been the network: a start time that stays says so, and the next page has it."""
        if self.endpoint.reported.process_start_s is None:
            self._restarted()
        else:
            self._was_gone = True

    def _restarted(self) -> None:
        self._was_gone = False
        self.endpoint.generation += 1
        self.counts.restarts += 1
        log.info("engine restarted", endpoint=self.endpoint.address, generation=self.endpoint.generation)

    def _tell_changes(self) -> None:
        """Log what happened since the last look, on the request path too, which does not log."""
        health = self.endpoint.health
        told, self._told = self._told, (health.ejections, health.returns)
        if self._told == told:
            return
        if not health.healthy:
            cause = "requests fail" if health.answers else "probes fail"
            log.warning("engine ejected", endpoint=self.endpoint.address, cause=cause)
        else:
            log.warning("engine is back", endpoint=self.endpoint.address)

    async def _identify(self) -> None:
        generation = self.endpoint.generation
        try:
            version = await self._ask(self._for_health, "/version")
            models = await self._ask(self._for_health, "/v1/models")
        except UnansweredError:
            return  # the next probe asks again
        if models.status >= 500 or version.status >= 500:
            return
        self.endpoint.identified(read_identity(version, models, self.endpoint.model))
        self._identified = generation

    # ---- metrics ------------------------------------------------------------------------------------------------

    async def _scrape(self) -> None:
        endpoint = self.endpoint
        if not endpoint.health.answers:
            self._age()
            return
        self.counts.scrapes += 1
        try:
            answer = await self._ask(self._for_metrics, "/metrics", MOST_BYTES)
        except UnansweredError as error:
            self._scrape_failed(error.reason)
            if error.reason == "connect":  # nobody is at the port: no need to wait for /health to say so
                self._probed(False)
            return
        if answer.status != 200:
            self._scrape_failed("status")
            return
        report = read_metrics(answer.body, self._clock_s())
        if report is None:
            self._scrape_failed("foreign")
            return
        self._reported(report)

    def _reported(self, report: EngineReport) -> None:
        endpoint = self.endpoint
        unsure = self._was_gone and report.process_start_s is None
        if unsure or restarted(endpoint.reported, report):
            self._restarted()
        self._was_gone = False
        endpoint.told(following(endpoint.reported, report, self.observe.stale_ms / 1e3))

    def _scrape_failed(self, reason: str) -> None:
        _count(self.counts.scrape_failures, reason)
        self._age()

    def _age(self) -> None:
        self.endpoint.reported = aged(self.endpoint.reported, self._clock_s(), self.observe.stale_ms / 1e3)

    # ---- round trip ---------------------------------------------------------------------------------------------

    async def _measure_rtt(self) -> None:
        try:
            answers = [await self._ask(self._for_rtt, "/version") for _ in range(2)]
        except UnansweredError:
            return  # a failed probe says nothing of the network: the smoothed value stays
        if any(answer.status >= 500 for answer in answers):
            return
        newest_ms = min(self._least_ms, *(answer.took_ms for answer in answers))
        self._least_ms = math.inf
        alpha = self.observe.rtt_alpha if self._rtt_known else 1.0
        self.endpoint.rtt_ms += alpha * (newest_ms - self.endpoint.rtt_ms)
        self._rtt_known = True

    def _count_fault(self) -> None:
        self.counts.faults += 1
        now_s = self._clock_s()
        if self._fault_logged_s is None or now_s - self._fault_logged_s >= _LOG_FAULTS_EVERY_S:
            self._fault_logged_s = now_s
            log.exception("watching an engine failed", endpoint=self.endpoint.address, faults=self.counts.faults)


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1


def read_identity(version: Answer, models: Answer, model: str) -> EngineIdentity:
    """What `/version` and `/v1/models` say; what they do not say stays unknown. The context length is `model`'s."""
    said = _object(version).get("version")
    listed = _object(models).get("data")
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    cards.sort(key=lambda card: card.get("id") != model)
    lengths = [n for card in cards if isinstance(n := card.get("max_model_len"), int) and n > 0]
    return EngineIdentity(
        version=said if isinstance(said, str) else None,
        models=tuple(name for card in cards if isinstance(name := card.get("id"), str)),
        max_model_len=lengths[0] if lengths else None,
    )


def _object(answer: Answer) -> dict[Any, Any]:
    try:
        document = msgspec.json.decode(answer.body) if answer.status == 200 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
