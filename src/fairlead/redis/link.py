"""The link to Redis: one owner of its connections, which reconnects by itself and never delays a request.

While connected it hands each participant the messages of its channel and lets it `serve`. Whatever goes wrong, with
Redis or with a participant, ends this connection, is counted and logged, and is tried again after a pause that grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Sequence
from random import random
from typing import Final, Protocol, TypeVar

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, RedisError

from fairlead.addresses import without_password
from fairlead.errors import UserError
from fairlead.redis.password import StorePassword

TIMEOUT_S: Final = 1.0  # for a command, and for silence past the next ping: a slower Redis counts as gone
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
LONGEST_ADDRESS: Final = 300  # of an endpoint, in characters
_PING_S: Final = 0.5
_STEADY_S: Final = 5.0  # after a connection that lasted this long, pauses start again at the shortest
_LEAVE_S: Final = 0.5
# What the library raises for bytes that are not Redis's: lengths below 0, no numbers, nested too deep, lines too long.
_MISREAD: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)

_Answer = TypeVar("_Answer")

log = structlog.get_logger("fairlead.redis")


class Participant(Protocol):
    """Something shared over one channel. Raising from `serve` or `received` ends the connection, not the sidecar."""

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
        self.up = False
        self.failures = 0  # connections refused or lost
        self._url = url
        self._password = password
        self._shown_url = without_password(url)
        self._participants = {participant.channel: participant for participant in participants}
        self._task: asyncio.Task[None] | None = None
        self._logged_down = False

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
            await asyncio.sleep(pause_s * (0.5 + random()))  # jitter: many sidecars lose their Redis together
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

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
                await self._subscribe(subscription)
                self._found()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._listen(subscription), name="redis listen")
                    group.create_task(self._ping(subscription), name="redis ping")
                    for participant in self._participants.values():
                        group.create_task(participant.serve(redis), name=f"redis {participant.channel}")
        except asyncio.CancelledError:
            await self._leave(redis)
            raise
        finally:
            self.up = False
            with contextlib.suppress(RedisError, OSError):
                await redis.aclose()

    async def _subscribe(self, subscription: PubSub) -> None:
        await answered(subscription.subscribe(*self._participants))
        for _ in self._participants:
            await _next_message(subscription)

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

    async def _leave(self, redis: Redis) -> None:
        if not self.up:
            return
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                for participant in self._participants.values():
                    await participant.leave(redis)

    def _found(self) -> None:
        self.up = True
        if self._logged_down:
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


def address_in(text: bytes) -> str | None:
    """The address of an endpoint that another program wrote into Redis; None: that is no address."""
    known = 0 < len(text) <= LONGEST_ADDRESS and text.isascii() and not any(byte <= 32 for byte in text)
    return text.decode("ascii") if known else None


async def answered(command: Awaitable[_Answer]) -> _Answer:
    """The answer to `command`; raises TimeoutError when it takes too long, and InvalidResponse for what is no answer.

    Python 3.11's `wait_for`, which the library uses for its own time limit, drops a cancellation that arrives together
    with the result, and then the link never stopped.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
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
