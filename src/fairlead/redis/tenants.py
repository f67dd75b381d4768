"""What tenants were given, shared between sidecars: what their rate limits paid, and the engine time of who waited.

Each sidecar publishes what it granted since its last message, ten times a second (among more than 50 sidecars more
rarely, as each reads what all the others send), and the others pay it from their own buckets and accounts. So a limit
is exceeded at most by what the others grant within that delay, and the debt is paid back before anything more is
granted. A message that is lost with its connection is never repeated: while Redis is away each sidecar has its part of
every limit, by the number of sidecars seen last. Each such change costs what the parts of the others had left. So once
a connection has broken off within seconds, nothing is shared until one has lasted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from math import inf
from secrets import token_bytes
from time import monotonic
from typing import Final

import msgspec
from redis.asyncio import Redis

from fairlead.admission.admission import Admission
from fairlead.admission.rates import RateLimits
from fairlead.redis.link import answered

PERIOD_S: Final = 0.1
MOST_TENANTS: Final = 1000  # of each kind in one message; the others are in the next
_MOST_BYTES: Final = 1 << 20  # of a message
_LONGEST_NAME: Final = 512
_NAME_BYTES: Final = 8
_MOST: Final = 1e12  # of tokens or ms in one message: a debt beyond is never paid back
_STEADY_S: Final = 5.0
_MOST_RECEIVED_PER_S: Final = 500  # messages, of all other sidecars


class _Message(msgspec.Struct, frozen=True, array_like=True):
    rates: list[tuple[bytes, float, float]]  # tenant, tokens, engine ms; negative: given back
    served: list[tuple[str, int, bytes, float]]  # group, level, tenant, engine ms


_decoder = msgspec.msgpack.Decoder(_Message)


class SharedTenants:
    """Keeps `rates` and the queue of `admission` in step with those of the other sidecars, of which `peers()` are."""

    def __init__(
        self,
        rates: RateLimits,
        admission: Admission,
        peers: Callable[[], int],
        database: int,
        clock_s: Callable[[], float],
    ) -> None:
        self.channel = f"fairlead:tenants:{database}"
        self.malformed = 0
        self.parts: int | None = None  # sidecars, when Redis last answered; None: it has not yet
        self._rates = rates
        self._admission = admission
        self._peers = peers
        self._clock_s = clock_s
        self._name = token_bytes(_NAME_BYTES)
        self._lasted_s = inf  # for how long it was shared when it was last

    def received(self, message: bytes) -> None:
        if message[:_NAME_BYTES] == self._name:
            return
        report = _decoded(message[_NAME_BYTES:])
        if report is None:
            self.malformed += 1
            return
        if not self._rates.is_shared:
            return
        now_s = self._clock_s()
        for tenant, tokens, engine_ms in report.rates:
            self._rates.others_took(tenant, tokens, engine_ms, now_s)
        for group, level, tenant, engine_ms in report.served:
            self._admission.queue.others_gave((group, level, tenant), engine_ms)

    async def serve(self, redis: Redis) -> None:
        if self._lasted_s < _STEADY_S:
            await asyncio.sleep(_STEADY_S)
        rates, self.parts, began_s = self._rates, None, monotonic()
        rates.divide(1, self._clock_s())
        self._share(is_shared=True)
        try:
            while True:
                await self._publish(redis)
                self.parts = self._peers() + 1  # just after Redis has answered: it is no outage that silences them
                await asyncio.sleep(max(PERIOD_S, self._peers() / _MOST_RECEIVED_PER_S))
        finally:
            self._lasted_s = monotonic() - began_s
            self._share(is_shared=False)
            rates.divide(self.parts, self._clock_s())

    async def leave(self, redis: Redis) -> None:
        await self._publish(redis)

    def _share(self, *, is_shared: bool) -> None:
        queue = self._admission.queue
        self._rates.is_shared = queue.is_shared = is_shared
        self._rates.unsent.clear()
        queue.unsent.clear()

    async def _publish(self, redis: Redis) -> None:
        rates, served = self._rates.unsent, self._admission.queue.unsent
        while rates or served:
            paid = [(tenant, *rates.pop(tenant)) for tenant in list(islice(rates, MOST_TENANTS))]
            given = [(*key, served.pop(key)) for key in list(islice(served, MOST_TENANTS))]
            await answered(redis.publish(self.channel, self._name + msgspec.msgpack.encode(_Message(paid, given))))
        await answered(redis.ping())


def _decoded(message: bytes) -> _Message | None:
    """None for what no sidecar sends: whoever may write to Redis must not be able to fill our memory."""
    if len(message) > _MOST_BYTES:
        return None
    try:
        report = _decoder.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    names = [len(tenant) for tenant, *_ in report.rates] + [len(tenant) for _, _, tenant, _ in report.served]
    numbers = [value for _, *values in report.rates for value in values] + [each[3] for each in report.served]
    if max(names, default=0) > _LONGEST_NAME or not all(-_MOST <= number <= _MOST for number in numbers):
        return None
    return None if any(each[3] < 0 for each in report.served) else report
