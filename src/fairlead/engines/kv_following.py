"""Following the KV events of those endpoints that publish them; `kv_events` is only imported where one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from fairlead.config import Config
from fairlead.core.pool import Endpoint
from fairlead.core.prefix_index import PrefixIndex
from fairlead.errors import UserError

if TYPE_CHECKING:
    from fairlead.engines.kv_events import KvEventCounts, KvEventFeed, KvEventSource


class KvFollowing:
    """`follow` when the pool is set up and whenever it changes, `restarted` for engines that did, `stop` at the end."""

    def __init__(self, index: PrefixIndex, clock_s: Callable[[], float]) -> None:
        self._index = index
        self._clock_s = clock_s
        self._feeds: dict[str, KvEventFeed] = {}
        self._generations: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def counts(self) -> Mapping[str, KvEventCounts]:
        """By address, of the endpoints that publish."""
        return {address: feed.counts for address, feed in self._feeds.items()}

    async def follow(self, config: Config, endpoints: Iterable[Endpoint]) -> None:
        """Follow what `config` names, whose endpoints stand in the same order; other feeds end.

        Raises UserError where the library is missing.
        """
        wanted = [
            (endpoint.address, configured.kv_events)
            for configured, endpoint in zip(config.pool.endpoints, endpoints, strict=True)
            if configured.kv_events is not None
        ]
        if not wanted and not self._feeds:
            return
        try:
            from fairlead.engines.kv_blocks import PreciseIndex
            from fairlead.engines.kv_events import KvEventFeed, KvEventSource, follow
        except ModuleNotFoundError as error:
            if error.name != "zmq":
                raise
            message = 'kv_events need the package pyzmq; install it with: pip install "fairlead[kv-events]"'
            raise UserError(message) from None
        sources = [KvEventSource(address, kv.events, kv.replay, kv.topic) for address, kv in wanted]
        if self._sources() == sources:
            return
        await self.stop()
        precise = PreciseIndex()
        self._feeds = {s.address: KvEventFeed(s, precise, self._index, self._clock_s) for s in sources}
        if self._feeds:
            self._task = asyncio.create_task(follow(self._feeds.values()), name="kv events")

    def restarted(self, endpoints: Iterable[Endpoint]) -> None:
        """Tell the feeds of engines whose generation has grown since the last call."""
        for endpoint in endpoints:
            feed = self._feeds.get(endpoint.address)
            if feed is not None and self._generations.get(endpoint.address, endpoint.generation) != endpoint.generation:
                feed.restarted()
            self._generations[endpoint.address] = endpoint.generation

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def _sources(self) -> list[KvEventSource]:
        return [feed.source for feed in self._feeds.values()]
