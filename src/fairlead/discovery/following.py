"""Follows several sources at once and merges what they list: the composition of all, whatever each one does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from fairlead.discovery.own import OwnAddresses
from fairlead.discovery.rules import NO_RULES, RequestRules
from fairlead.discovery.source import DiscoveredEndpoint, EndpointSet, Source, SourceStatus, UnusableError

_FIRST_PAUSE_S: Final = 0.5  # before a source that raised is asked for a new stream
_LONGEST_PAUSE_S: Final = 30.0
_LOG_S: Final = 60.0  # between two lines about one failure that lasts

log = structlog.get_logger("fairlead")


class Discovery:
    """`follow` the sources; `changed` is called, on the event loop, whenever the merged set may have changed."""

    def __init__(self, changed: Callable[[], None], clock_s: Callable[[], float]) -> None:
        self.statuses: tuple[SourceStatus, ...] = ()
        self.own = OwnAddresses()  # set before `follow`
        self._changed = changed
        self._clock_s = clock_s
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_synced(self) -> bool:
        """Whether each source has yielded a set; true without sources."""
        return all(status.endpoints is not None for status in self.statuses)

    def endpoints(self) -> EndpointSet:
        """All sources' endpoints, each address once: as the first source in the configuration's order lists it."""
        merged: dict[str, DiscoveredEndpoint] = {}
        for status in self.statuses:
            for endpoint in status.endpoints or ():
                merged.setdefault(endpoint.address, endpoint)
        return tuple(merged.values())

    def look_again(self) -> None:
        """What an engine said of itself is not true any more."""
        self._changed()

    def rules(self) -> RequestRules:
        """Of the one source that has some: there is one cluster."""
        return next((status.rules for status in self.statuses if status.rules != NO_RULES), NO_RULES)

    async def follow(self, sources: Sequence[Source]) -> None:
        """Follow these instead of those before. A source of the same name keeps its last set until it has a new one."""
        known = {status.name: status for status in self.statuses}
        await self.stop()
        self.statuses = tuple(known.get(each.name) or SourceStatus(each.name, self._clock_s) for each in sources)
        for source, status in zip(sources, self.statuses, strict=True):
            self._tasks.append(asyncio.create_task(self._follow(source, status), name=f"discovery {source.name}"))
        self._changed()

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, source: Source, status: SourceStatus) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async for endpoints in source.sets(status):
                    pause_s = _FIRST_PAUSE_S
                    self._take(status, endpoints)
                status.failed("its stream ended")
            except UnusableError as error:
                status.failed(str(error))
            except Exception as error:  # a bug of a source must not end the others, nor the sidecar
                status.failed(f"{type(error).__name__}: {error}")
                log.exception("following a source of endpoints failed; its last set stays", source=status.name)
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _take(self, status: SourceStatus, endpoints: EndpointSet) -> None:
        status.confirmed()
        if status.rules != status.found_rules:
            status.rules = status.found_rules
            rewrites = status.rules.rewrites
            log.info(
                "rules of requests discovered",
                source=status.name,
                objectives=len(status.rules.priorities),
                rewritten=[*rewrites.by_name, *(["every other model"] if rewrites.of_others else [])],
            )
            self._changed()
        endpoints = self._without_own(status, endpoints)
        if endpoints == status.endpoints:
            return
        before = status.endpoints or ()
        status.endpoints = endpoints
        status.changes += 1
        was, now = {e.address for e in before}, {e.address for e in endpoints}
        log.info(
            "endpoints discovered",
            source=status.name,
            endpoints=len(now),
            new=len(now - was),
            gone=len(was - now),
            draining=sum(e.draining for e in endpoints),
        )
        self._changed()

    def _without_own(self, status: SourceStatus, endpoints: EndpointSet) -> EndpointSet:
        own = {endpoint.address for endpoint in endpoints if self.own.has(endpoint.address)}
        for address in sorted(own - status.own):
            status.refused += 1
            log.error(
                "a source lists an address at which Fairlead or its gateway listens; requests sent there would go in "
                "a circle, so it is left out: remove it from the source",
                source=status.name,
                address=address,
            )
        status.own = frozenset(own)
        return tuple(endpoint for endpoint in endpoints if endpoint.address not in own) if own else endpoints


class FailureLog:
    """One line when a source begins to fail, when its reason changes and every minute; one when it is well again."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._logged: dict[str, tuple[str, float]] = {}  # the error and when, by source
        self._logged_rules: dict[str, str] = {}

    def log_new(self, now_s: float) -> None:
        for status in self._discovery.statuses:
            error, at_s = self._logged.get(status.name, ("", 0.0))
            if status.error and (status.error != error or now_s - at_s >= _LOG_S):
                self._logged[status.name] = status.error, now_s
                log.error(
                    "a source of endpoints cannot be read; its last set stays in force",
                    source=status.name,
                    reason=status.error,
                    age_s=status.age_s(),
                    endpoints=len(status.endpoints or ()),
                )
            elif error and not status.error:
                del self._logged[status.name]
                log.info("a source of endpoints can be read again", source=status.name)
            self._log_rules(status)

    def _log_rules(self, status: SourceStatus) -> None:
        """Once for each reason: a pool works without them."""
        if status.rules_error == self._logged_rules.get(status.name, ""):
            return
        self._logged_rules[status.name] = status.rules_error
        if status.rules_error:
            message = "priorities and rewrites of models cannot be read; the last known stay in force"
            log.warning(message, source=status.name, reason=status.rules_error)
        else:
            log.info("priorities and rewrites of models can be read again", source=status.name)
