"""Following the KV events of those endpoints that publish them; `kv_events` is imported only if one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from fairlead.config import Config
from fairlead.core.endpoint import Endpoint
from fairlead.core.prefix_index import PrefixIndex
from fairlead.errors import UserError, how_to_install

if TYPE_CHECKING:
    from fairlead.engines.kv_events import KvEventCounts, KvEventFeed, KvEventSource


def require_library(config: Config) -> None:
    """Raises UserError if an endpoint publishes KV events and the library to read them is not installed."""
    publishing = (index for index, endpoint in enumerate(config.pool.endpoints) if endpoint.kv_events is not None)
    index = next(publishing, None)
    if index is None:
        return
    try:
        import zmq  # noqa: F401
    except ModuleNotFoundError:
        message = f"needs the package pyzmq; {how_to_install('kv-events')}"
        raise UserError(f"pool.endpoints[{index}].kv_events: {message}") from None


class KvFollowing:
    """Call `follow` when the pool is set up or changes, `restarted` after engines restart, `stop` at the end."""

    def __init__(self, index: PrefixIndex, clock_s: Callable[[], float]) -> None:
        self._index = index
        self._clock_s = clock_s
        self._feeds: dict[str, KvEventFeed] = {}
        self._generations: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def counts(self) -> Mapping[str, KvEventCounts]:
        """Counts by address, for the endpoints that publish."""
        return {address: feed.counts for address, feed in self._feeds.items()}

    async def follow(self, config: Config, endpoints: Iterable[Endpoint]) -> None:
        """Follow the endpoints of `config`, which come first and in the same order; other feeds end."""
        wanted = [
            (endpoint.address, configured.kv_events)
            for configured, endpoint in zip(config.pool.endpoints, endpoints, strict=False)
            if configured.kv_events is not None
        ]
        if not wanted and not self._feeds:
            return
        from fairlead.engines.kv_blocks import PreciseIndex
        from fairlead.engines.kv_events import KvEventFeed, KvEventSource, follow

        sources = [KvEventSource(address, kv.events, kv.replay, kv.topic) for address, kv in wanted]
        if self._sources() == sources:
            return
        await self.stop()
        precise = PreciseIndex()
        self._feeds = {s.address: KvEventFeed(s, precise, self._index, self._clock_s) for s in sources}
        if self._feeds:
            self._task = asyncio.create_task(follow(self._feeds.values()), name="kv events")

    def restarted(self, endpoints: Iterable[Endpoint]) -> None:
        """Notify the feeds of engines whose generation has grown since the last call."""
        before, self._generations = self._generations, {each.address: each.generation for each in endpoints}
        for address, generation in self._generations.items():
            feed = self._feeds.get(address)
            if feed is not None and before.get(address, generation) != generation:
                feed.restarted()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def _sources(self) -> list[KvEventSource]:
        return [feed.source for feed in self._feeds.values()]
