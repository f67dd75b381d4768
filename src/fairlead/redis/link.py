"""The link to Redis: one owner of its connections, which reconnects by itself and never delays a request.

While connected it hands each participant the messages of its channel and lets it `serve`. Whatever goes wrong, with
Redis or with a participant, ends this connection, is counted and logged, and is tried again after a pause that grows.
Only where Redis refuses a command, such as a write because it is full, that participant alone begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Sequence
from math import inf
from random import random
from time import monotonic
from typing import Final, Protocol, TypeVar

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError, ResponseError

from fairlead.addresses import without_password
from fairlead.errors import UserError
from fairlead.redis.password import StorePassword

TIMEOUT_S: Final = 1.0  # for a command, and for silence past the next ping: a slower Redis counts as gone
SCRIPT_S: Final = 3 * TIMEOUT_S  # one that Redis does not know yet takes three commands
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
LONGEST_ADDRESS: Final = 300  # of an endpoint, in characters
_OPEN_S: Final = 3.0  # for connections, each of which takes some answers of Redis before the first command
_PING_S: Final = 0.5
_STEADY_S: Final = 5.0  # after a connection that lasted this long, pauses start again at the shortest
_LEAVE_S: Final = 0.5
# What the library raises for bytes that are not Redis's: lengths below 0, no numbers, nested too deep, lines too long.
_MISREAD: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)

_Answer = TypeVar("_Answer")

log = structlog.get_logger("fairlead.redis")


class Participant(Protocol):
    """Something shared over one channel. Raising from `serve` or `received` ends the connection, not the sidecar; but
    after a ResponseError `serve` is called again."""

    channel: str

    def received(self, message: bytes) -> None:
        """A message on the channel, our own included."""

    async def serve(self, redis: Redis) -> None:
        """Work while connected, the subscription already confirmed. Cancelled when the connection ends."""

    async def leave(self, redis: Redis) -> None:
        """The sidecar stops: publish the last update, quickly."""


class RedisLink:
    """One Redis for several participants. `up` and `failures` are for metrics."""

    def __init__(self, url: str, password: StorePassword, participants: Sequence[Participant]) -> None:
        self.failures = 0  # connections refused or lost, and commands refused
        self._is_connected = False
        self._refused_s = -inf  # when Redis refused a command last
        self._connected_s = -inf
        self._short_s = -inf  # when a connection was lost last that had not lasted long
        self._url = url
        self._password = password
        self._shown_url = without_password(url)
        self._participants = {participant.channel: participant for participant in participants}
        self._task: asyncio.Task[None] | None = None
        self._logged_down = False

    @property
    def up(self) -> bool:
        """Whether all that is to be shared is: Redis answers, and has refused nothing for a while."""
        return self._is_connected and not self._refuses()

    def start(self) -> None:
        """Connect in the background."""
        self._task = asyncio.create_task(self._run(), name="redis link")

    async def stop(self) -> None:
        """Let the participants leave, and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = loop.time()
            try:
                await self._connected()
            except Exception as error:  # a participant's fault too: the next connection restarts it
                self._lost(error)
            if loop.time() - began_s > _STEADY_S:
                pause_s = FIRST_PAUSE_S
            pause_s = await _paused(pause_s)

    async def _connected(self) -> None:
        """Open one connection and serve until it fails; raises what ended it."""
        redis = Redis.from_url(
            self._url,
            password=self._password.read(),  # what the URL has goes before it
            protocol=2,
            socket_timeout=None,  # the library's own timeout sometimes swallows a cancellation: see `answered`
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # the library's own would repeat commands of ours out of order
        )
        try:
            async with redis.pubsub() as subscription:
                await self._open(redis, subscription)
                self._is_connected, self._connected_s = True, monotonic()
                self._found()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._listen(subscription), name="redis listen")
                    group.create_task(self._ping(subscription), name="redis ping")
                    for participant in self._participants.values():
                        group.create_task(self._serve(participant, redis), name=f"redis {participant.channel}")
        except asyncio.CancelledError:
            await self._leave(redis)
            raise
        finally:
            if self._is_connected and monotonic() - self._connected_s < _STEADY_S:
                self._short_s = monotonic()
            self._is_connected = False
            with contextlib.suppress(RedisError, OSError):
                await redis.aclose()

    async def _open(self, redis: Redis, subscription: PubSub) -> None:
        """The subscription, and a connection for each participant, whose commands have less time than to open one."""
        await answered(subscription.subscribe(*self._participants), _OPEN_S)
        async with asyncio.TaskGroup() as opening:
            for channel in self._participants:
                opening.create_task(answered(redis.ping(), _OPEN_S), name=f"redis open {channel}")
        for _ in self._participants:
            await _next_message(subscription)

    async def _serve(self, participant: Participant, redis: Redis) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await participant.serve(redis)
            except ReadOnlyError:  # a replica: another server may be the master by now, so its name is looked up again
                self._refused_s = monotonic()
                raise
            except ResponseError as error:
                self._refused_s = monotonic()
                self._lost(error)
            pause_s = await _paused(pause_s)

    async def _listen(self, subscription: PubSub) -> None:
        while True:
            kind, channel, data = await _next_message(subscription)
            participant = self._participants.get(channel)
            if kind == "message" and participant is not None:
                participant.received(data)

    async def _ping(self, subscription: PubSub) -> None:
        """Ping, because a quiet subscription and a Redis that hangs look the same."""
        while True:
            await asyncio.sleep(_PING_S)
            await answered(subscription.ping())
            self._found()

    async def _leave(self, redis: Redis) -> None:
        if not self._is_connected:
            return
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                for participant in self._participants.values():
                    await participant.leave(redis)

    def _refuses(self) -> bool:
        return monotonic() - self._refused_s < _STEADY_S

    def _found(self) -> None:
        if self._logged_down and not self._refuses() and monotonic() - self._short_s >= _STEADY_S:
            log.info("the store is back", store=self._shown_url)
            self._logged_down = False

    def _lost(self, error: Exception) -> None:
        self.failures += 1
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if not isinstance(cause, RedisError | OSError | TimeoutError | UserError):
            trace = "".join(traceback.format_exception(cause, limit=-8))  # never with locals: one may be the password
            log.error("sharing over the store failed", store=self._shown_url, cause=trace)
        elif not self._logged_down:
            why = f"{type(cause).__name__}: {cause}"
            log.warning("the store cannot be used, the local table serves", store=self._shown_url, cause=why)
        self._logged_down = True


async def _paused(pause_s: float) -> float:
    """The next pause, after this one. Jitter, as many sidecars lose their Redis together."""
    await asyncio.sleep(pause_s * (0.5 + random()))
    return min(2 * pause_s, LONGEST_PAUSE_S)


def address_in(text: bytes) -> str | None:
    """The address of an endpoint that another program wrote into Redis; None: that is no address."""
    known = 0 < len(text) <= LONGEST_ADDRESS and text.isascii() and not any(byte <= 32 for byte in text)
    return text.decode("ascii") if known else None


async def answered(command: Awaitable[_Answer], within_s: float = TIMEOUT_S) -> _Answer:
    """The answer to `command`; raises TimeoutError when it takes too long, and InvalidResponse for what is no answer.

    Python 3.11's `wait_for`, which the library uses for its own time limit, drops a cancellation that arrives together
    with the result, and then the link never stopped.
    """
    try:
        async with asyncio.timeout(within_s):
            return await command
    except _MISREAD as error:
        raise _no_redis(error) from error


async def _next_message(subscription: PubSub) -> tuple[str, str, bytes]:
    """The kind, channel and content of the next message; raises TimeoutError if the ping is not answered either."""
    try:
        message = await subscription.get_message(timeout=_PING_S + TIMEOUT_S)
        if message is None:
            raise TimeoutError("no answer to a ping")
        kind, channel, data = message["type"], (message["channel"] or b"").decode(), message["data"]
    except _MISREAD as error:
        raise _no_redis(error) from error
    if kind == "message" and not isinstance(data, bytes):
        raise InvalidResponse(f"a message of {type(data).__name__}")
    return kind, channel, data


def _no_redis(error: Exception) -> InvalidResponse:
    return InvalidResponse(f"this is not how Redis answers ({type(error).__name__}: {error})")
