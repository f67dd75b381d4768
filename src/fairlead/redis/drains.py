"""Draining endpoints shared over Redis: a drain ordered at one sidecar holds at all of them, and outlives each.

Keys are `fairlead:draining:<address>`. They expire an hour after the last sidecar that drained the endpoint is gone, or
after the endpoint left the pool: its address may come back as another engine.

A drain that was ended leaves `fairlead:undrained:<address>` for a week. A sidecar that was away when it ended, or that
starts with a file of before, finds no key in Redis, and without that one could not know whether Redis has lost it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from math import inf
from typing import Final, cast

from redis.asyncio import Redis

from fairlead.redis.link import address_in, answered

KEY_PREFIX: Final = "fairlead:draining:"
ENDED_PREFIX: Final = "fairlead:undrained:"
MOST_DRAINS: Final = 10_000  # whoever can write to Redis must not be able to fill our memory

_PERIOD_S: Final = 0.1
_TTL_S: Final = 3600
_ENDED_TTL_S: Final = 7 * 24 * 3600
_RENEW_S: Final = 60.0
_SCAN_BATCH: Final = 1000  # keys of all kinds; Redis is busy with it for less than a millisecond
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
        self._restored: set[str] = set()  # what a file says, until Redis has been asked whether it still holds

    @property
    def shared(self) -> Collection[str]:
        """Those that Redis says drain, in the pool or not."""
        return self._shared

    def start(self) -> None:
        """What drains by now is what was ordered before this sidecar started."""
        self._restored = set(self._draining)

    def received(self, message: bytes) -> None:
        """`+` or `-`, and the address."""
        address = address_in(message[1:])
        if address is None or message[:1] not in (b"+", b"-"):
            self.malformed += 1
        elif message[:1] == b"+":
            self._learn(address)
        else:
            self._forget(address)

    async def serve(self, redis: Redis) -> None:
        await self._end_what_others_ended(redis)
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

    async def _end_what_others_ended(self, redis: Redis) -> None:
        """While this sidecar was not connected. What nobody ended and is not in Redis was lost with it."""
        for address in self._draining & (self._shared | self._restored):
            if await answered(redis.exists(KEY_PREFIX + address)):
                continue
            if await answered(redis.exists(ENDED_PREFIX + address)):
                self._forget(address)
        self._restored.clear()

    async def _renew(self, redis: Redis) -> None:
        for address in self._draining & self._shared:
            if address in self._pool():
                await answered(redis.set(KEY_PREFIX + address, "1", ex=_TTL_S))
            elif not await answered(redis.exists(KEY_PREFIX + address)):
                self._forget(address)

    async def _write(self, redis: Redis) -> None:
        for address in (self._draining - self._shared) & self._pool():
            await answered(redis.set(KEY_PREFIX + address, "1", ex=_TTL_S))
            await answered(redis.delete(ENDED_PREFIX + address))
            await answered(redis.publish(self.channel, "+" + address))
            self._shared.add(address)
        for address in self._shared - self._draining:
            if address in self._pool():
                await answered(redis.set(ENDED_PREFIX + address, "1", ex=_ENDED_TTL_S))
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
            await self._write(redis)  # among a million keys this takes a while
            if not cursor:
                return

    def _learn(self, address: str) -> None:
        if address in self._shared:  # and if it does not drain any more, Redis is about to be told
            return
        if len(self._shared) >= MOST_DRAINS:
            self.malformed += 1
            return
        self._shared.add(address)
        self._draining.add(address)

    def _forget(self, address: str) -> None:
        self._shared.discard(address)
        self._draining.discard(address)
