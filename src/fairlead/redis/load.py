"""Load shared between sidecars: each publishes what it has in flight, for the others within 0.1 s.

A message holds a sidecar's whole load, without the endpoints that have none. It is sent every 50 ms while the load
changes, and as a heartbeat in between; among more than 26 sidecars more rarely, as each reads what all the others send.
The load of a sidecar that is silent for a second is dropped, though its requests may still run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from secrets import token_bytes
from typing import Final

import msgspec
from redis.asyncio import Redis

from fairlead.core.endpoint import Endpoint
from fairlead.core.load import Load
from fairlead.core.peers import NO_LOAD, Peers
from fairlead.redis.link import answered

PERIOD_S: Final = 0.05
SIGN_OF_LIFE_S: Final = 0.3
EXPIRY_S: Final = 1.0

_EXPIRY_CHECK_S: Final = 0.1
_NAME_BYTES: Final = 8
_MOST_BYTES: Final = 1 << 20  # of a message: a load at 10,000 endpoints
_MOST_RECEIVED_PER_S: Final = 500  # messages; each costs some 0.1 ms of the event loop


class _LoadMessage(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a sidecar are ordered by `number`. Without `loads`, the sidecar has left."""

    number: int
    loads: dict[str, Load] | None


_decoder = msgspec.msgpack.Decoder(_LoadMessage)


class SharedLoad:
    """Publishes the load of `endpoints()`, and calls `apply(address, load)` when the sum of all others' has changed.

    Public counts are for metrics.
    """

    def __init__(
        self,
        endpoints: Callable[[], Iterable[Endpoint]],
        apply: Callable[[str, Load], None],
        database: int,
        clock_s: Callable[[], float],
    ) -> None:
        self.channel = f"fairlead:load:{database}"
        self.peers = Peers(EXPIRY_S)
        self.sent = 0
        self.received_loads = 0
        self.malformed = 0
        self._endpoints = endpoints
        self._apply = apply
        self._clock_s = clock_s
        self._name = token_bytes(_NAME_BYTES)
        self._timer: asyncio.TimerHandle | None = None

    def received(self, message: bytes) -> None:
        name = message[:_NAME_BYTES]
        if name == self._name:
            return
        report = _decoded(message[_NAME_BYTES:])
        if report is None:
            self.malformed += 1
            return
        self.received_loads += 1
        if report.loads is None:
            self._notify(self.peers.left(name))
            return
        self._notify(self.peers.reported(name, report.number, report.loads, self._clock_s()))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EXPIRY_CHECK_S, self._expire)

    async def serve(self, redis: Redis) -> None:
        published: dict[str, Load] | None = None
        published_s = 0.0
        while True:
            loads, now_s = self._own(), self._clock_s()
            if loads != published or not 0 <= now_s - published_s < SIGN_OF_LIFE_S:
                await self._publish(redis, loads)
                published, published_s = loads, now_s
            await asyncio.sleep(max(PERIOD_S, self.peers.count / _MOST_RECEIVED_PER_S))

    async def leave(self, redis: Redis) -> None:
        await self._publish(redis, None)

    def close(self) -> None:
        """Stop watching for sidecars that fall silent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _own(self) -> dict[str, Load]:
        return {
            e.address: e.own.plus(NO_LOAD)  # a copy: it is compared with what was sent before
            for e in self._endpoints()
            if e.own.inflight_requests
        }

    async def _publish(self, redis: Redis, loads: dict[str, Load] | None) -> None:
        self.sent += 1
        message = self._name + msgspec.msgpack.encode(_LoadMessage(self.sent, loads))
        await answered(redis.publish(self.channel, message))

    def _expire(self) -> None:
        """Run by a timer of its own and not by `serve`, because it must run when Redis is gone."""
        self._timer = None
        self._notify(self.peers.expire(self._clock_s()))
        if self.peers.count:
            self._timer = asyncio.get_running_loop().call_later(_EXPIRY_CHECK_S, self._expire)

    def _notify(self, changed: dict[str, Load]) -> None:
        for address, load in changed.items():
            self._apply(address, load)


def _decoded(message: bytes) -> _LoadMessage | None:
    """None for what no sidecar sends: whoever may write to Redis must not be able to fill our memory."""
    if len(message) > _MOST_BYTES:
        return None
    try:
        return _decoder.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
