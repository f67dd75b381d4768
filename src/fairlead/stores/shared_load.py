"""Load shared between sidecars: each says what it has in flight, and hears the others within a tenth of a second.

A message holds the whole of a sidecar's load, endpoints without any left out. It is sent every 50 ms while something
changes and as a sign of life in between; who is silent for a second counts no more, though its requests may still run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from secrets import token_bytes
from typing import Final

import msgspec
from redis.asyncio import Redis

from fairlead.core.peers import Load, Peers
from fairlead.core.pool import Endpoint
from fairlead.stores.link import answered

PERIOD_S: Final = 0.05
SIGN_OF_LIFE_S: Final = 0.3
EXPIRY_S: Final = 1.0

_EXPIRY_CHECK_S: Final = 0.1
_NAME_BYTES: Final = 8


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """After it, messages of this sidecar are older if their number is less. Without `loads` it has left."""

    number: int
    loads: dict[str, Load] | None


_decoder = msgspec.msgpack.Decoder(_Message)


class SharedLoad:
    """Says the load of `endpoints()`, and calls `apply(address, load)` when the sum of all others' has changed.

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
        self.heard = 0
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
        try:
            said = _decoder.decode(message[_NAME_BYTES:])
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.malformed += 1
            return
        self.heard += 1
        if said.loads is None:
            self._tell(self.peers.left(name))
            return
        self._tell(self.peers.heard(name, said.number, said.loads, self._clock_s()))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EXPIRY_CHECK_S, self._expire)

    async def serve(self, redis: Redis) -> None:
        said: dict[str, Load] | None = None
        said_s = 0.0
        while True:
            loads, now_s = self._own(), self._clock_s()
            if loads != said or not 0 <= now_s - said_s < SIGN_OF_LIFE_S:
                await self._say(redis, loads)
                said, said_s = loads, now_s
            await asyncio.sleep(PERIOD_S)

    async def leave(self, redis: Redis) -> None:
        await self._say(redis, None)

    def close(self) -> None:
        """Stop waiting for others to fall silent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _own(self) -> dict[str, Load]:
        return {
            e.address: Load(
                e.inflight_requests, e.inflight_prompt_tokens, e.pending_prefill_tokens, e.decoding_requests
            )
            for e in self._endpoints()
            if e.inflight_requests
        }

    async def _say(self, redis: Redis, loads: dict[str, Load] | None) -> None:
        self.sent += 1
        message = self._name + msgspec.msgpack.encode(_Message(self.sent, loads))
        await answered(redis.publish(self.channel, message))

    def _expire(self) -> None:
        """A timer of its own, not part of `serve`: it must run when Redis is gone."""
        self._timer = None
        self._tell(self.peers.expire(self._clock_s()))
        if self.peers.count:
            self._timer = asyncio.get_running_loop().call_later(_EXPIRY_CHECK_S, self._expire)

    def _tell(self, changed: dict[str, Load]) -> None:
        for address, load in changed.items():
            self._apply(address, load)
