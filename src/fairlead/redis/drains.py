"""Draining endpoints shared over Redis: a drain ordered at one sidecar holds at all of them, and outlives each.

Keys are `fairlead:draining:<address>`. They expire an hour after the last sidecar that drained the endpoint is gone, or
after the endpoint left the pool: its address may come back as another engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from math import inf
from typing import Final, cast

from redis.asyncio import Redis

from fairlead.redis.link import address_in, answered

KEY_PREFIX: Final = "fairlead:draining:"

_PERIOD_S: Final = 0.1
_TTL_S: Final = 3600
_RENEW_S: Final = 60.0
_SCAN_BATCH: Final = 200
_MOST_SCANS: Final = 20_000


class SharedDrains:
    """Keeps `draining`, a set of addresses that others change too, and Redis in step."""

    def __init__(
        self,
        draining: set[str],
        pool: Callable[[], set[str]],
        database: int,
        clock_s: Callable[[], float],
    ) -> None:
        self.channel = f"fairlead:draining:{database}"
        self.malformed = 0
        self._draining = draining
        self._pool = pool  # addresses of the endpoints
        self._clock_s = clock_s
        self._shared: set[str] = set()  # what Redis knows

    @property
    def shared(self) -> Collection[str]:
        """Those that Redis says drain, in the pool or not."""
        return self._shared

    def received(self, message: bytes) -> None:
        """`+` or `-`, and the address."""
        address = address_in(message[1:])
        if address is None or message[:1] not in (b"+", b"-"):
            self.malformed += 1
        elif message[:1] == b"+":
            self._learn(address)
        else:
            self._draining.discard(address)
            self._shared.discard(address)

    async def serve(self, redis: Redis) -> None:
        await self._write(redis)  # what was undrained while Redis was away must not come back
        await self._load(redis)
        renewed_s = -inf  # Redis may have lost what it knew
        while True:
            await self._write(redis)
            if self._clock_s() - renewed_s > _RENEW_S:
                renewed_s = self._clock_s()
                await self._renew(redis)
            await asyncio.sleep(_PERIOD_S)

    async def leave(self, redis: Redis) -> None:
        await self._write(redis)

    async def _renew(self, redis: Redis) -> None:
        for address in self._draining & self._shared:
            if address in self._pool():
                await answered(redis.set(KEY_PREFIX + address, "1", ex=_TTL_S))
            elif not await answered(redis.exists(KEY_PREFIX + address)):
                self._draining.discard(address)
                self._shared.discard(address)

    async def _write(self, redis: Redis) -> None:
        for address in (self._draining - self._shared) & self._pool():
            await answered(redis.set(KEY_PREFIX + address, "1", ex=_TTL_S))
            await answered(redis.publish(self.channel, "+" + address))
            self._shared.add(address)
        for address in self._shared - self._draining:
            if address in self._pool():
                await answered(redis.delete(KEY_PREFIX + address))
                await answered(redis.publish(self.channel, "-" + address))
            self._shared.discard(address)

    async def _load(self, redis: Redis) -> None:
        cursor = 0
        for _ in range(_MOST_SCANS):
            cursor, keys = await answered(redis.scan(cursor, match=KEY_PREFIX + "*", count=_SCAN_BATCH))
            for key in cast(list[bytes], keys):
                address = address_in(key[len(KEY_PREFIX) :])
                if address is None:
                    self.malformed += 1
                else:
                    self._learn(address)
            if not cursor:
                return

    def _learn(self, address: str) -> None:
        self._shared.add(address)
        self._draining.add(address)
