"""Clients that keep bodies in Envoy without end: it gives these up before its memory is full, and serves others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import h2.config
import h2.connection
import h2.events
import pytest

from fairlead.addresses import host_and_port
from tests.gateway.conftest import Gateway, StartEngine, StartEnvoy
from tests.waiting import until

MEMORY_BYTES = 160 << 20
BODY_BYTES = 8 << 20
BODIES = 3 * MEMORY_BYTES // BODY_BYTES
MANY = 100  # clients: with a whole body each they have five times the memory
MARGIN_BYTES = 80 << 20  # Envoy's program and the stacks of its threads are 65 MiB
ENDING_BYTES = 4 * BODY_BYTES  # over HTTP/1 a request that was ended keeps its memory for a second
CHUNK = b"x" * 16_384
_HEAD = [(":scheme", "http"), (":authority", "x")]


@pytest.fixture
async def gateway(engine: StartEngine, envoy: StartEnvoy) -> Gateway:
    return await envoy((await engine("first")).address, memory_bytes=MEMORY_BYTES)


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 10_000), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_one_client_of_http2_cannot_fill_the_memory_with_bodies_that_never_end(gateway: Gateway) -> None:
    async with Connection.of(gateway) as attack:
        for sent in range(1, BODIES + 1):
            await attack.begin(1, BODY_BYTES)
            await has_noticed_all_but_the_reset(gateway, attack, sent)
        assert attack.reset, "some were given up"
        assert highest_bytes(gateway) < MEMORY_BYTES + MARGIN_BYTES
        await until(lambda: answers(gateway), "another client is served while this one stays")


async def test_clients_of_http1_cannot_fill_the_memory_with_bodies_that_never_end(gateway: Gateway) -> None:
    ended: list[asyncio.Task[bytes]] = []  # those that are done: Envoy has closed their connections
    async with AsyncExitStack() as stack:
        while len(ended) < BODIES and sum(each.done() for each in ended) < 5:
            reader, writer = await asyncio.open_connection(*_place(gateway))
            stack.callback(writer.close)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (2 * BODY_BYTES))
            ended.append(asyncio.create_task(reader.read()))
            with contextlib.suppress(ConnectionError):
                for _ in range(0, BODY_BYTES, len(CHUNK)):
                    writer.write(CHUNK)
                    await writer.drain()
            await until(lambda: has_noticed(gateway, sum(not each.done() for each in ended)))
        assert any(each.done() for each in ended), "some were given up"
        assert highest_bytes(gateway) < MEMORY_BYTES + MARGIN_BYTES + ENDING_BYTES
    await asyncio.gather(*ended, return_exceptions=True)
    await until(lambda: answers(gateway), "another client is served once they have left")


async def test_many_clients_that_send_at_once_cannot_fill_the_memory(gateway: Gateway) -> None:
    async with AsyncExitStack() as stack:
        os.kill(gateway.process.pid, signal.SIGSTOP)  # so that all have sent much before it looks
        stack.callback(os.kill, gateway.process.pid, signal.SIGCONT)
        attacks = [asyncio.open_connection(*_place(gateway)) for _ in range(MANY)]
        for _, writer in await asyncio.gather(*attacks):
            stack.callback(writer.close)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (2 * BODY_BYTES))
            writer.write(b"x" * BODY_BYTES)
        os.kill(gateway.process.pid, signal.SIGCONT)
        await until(lambda: gave_up(gateway, MANY // 2))
        assert highest_bytes(gateway) < MEMORY_BYTES + MARGIN_BYTES + ENDING_BYTES
    await until(lambda: answers(gateway), "another client is served once they have left")


async def test_clients_that_do_not_read_their_answers_cannot_fill_the_memory(
    engine: StartEngine, envoy: StartEnvoy
) -> None:
    wordy = await engine("x" * BODY_BYTES)
    gateway = await envoy(wordy.address, memory_bytes=MEMORY_BYTES)
    async with AsyncExitStack() as stack:
        for _ in range(MANY):
            _, writer = await asyncio.open_connection(*_place(gateway), limit=1)
            stack.callback(writer.close)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        await until(lambda: len(wordy.received) == MANY)
        assert await answers(gateway), "another client is served while these stay"
        assert highest_bytes(gateway) < MEMORY_BYTES


@pytest.mark.usefixtures("many_files")
async def test_connections_that_ask_no_more_give_their_memory_back(engine: StartEngine, envoy: StartEnvoy) -> None:
    gateway = await envoy((await engine("first")).address, memory_bytes=128 << 20, max_body_bytes=1 << 20)
    request = Connection.first_request()
    async with AsyncExitStack() as stack:
        while await pressure_percent(gateway) < 85 and not await closed(gateway):
            for _, writer in await asyncio.gather(*(asyncio.open_connection(*_place(gateway)) for _ in range(50))):
                stack.callback(writer.close)
                writer.write(request)
        await until(lambda: closed(gateway), "otherwise they may stay for an hour")
        await until(lambda: answers(gateway))


async def test_what_comes_while_the_memory_is_full_is_told_to_come_back(gateway: Gateway) -> None:
    """Full of bodies that are too small to be given up one by one."""
    async with AsyncExitStack() as stack:
        while await pressure_percent(gateway) < 85:
            attack = await stack.enter_async_context(Connection.of(gateway))
            await attack.begin(1_000, 4_000)
        await until(lambda: is_refused(gateway), "the thread that serves has heard of it")
        answer = await gateway.post()
        assert answer.headers["retry-after"] == "1"
        assert b'"code":"overloaded"' in answer.body
    await until(lambda: answers(gateway), "it serves again once they have left")


class Connection:
    """Of one client of HTTP/2, with requests whose bodies never end."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.reset = 0
        self._writer = writer
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._http.initiate_connection()
        self._left: dict[int, int] = {}  # bytes to send, by stream
        self._moved = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def of(cls, gateway: Gateway) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection(*_place(gateway))
        with contextlib.closing(writer):
            made = cls(writer)
            writer.write(made._http.data_to_send())
            reading = asyncio.create_task(made._read(reader))
            await made._moved.wait()  # Envoy's settings
            yield made
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    @classmethod
    def first_request(cls) -> bytes:
        """Of a connection, with what comes before it."""
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        http.initiate_connection()
        http.send_headers(1, [*_HEAD, (":method", "GET"), (":path", "/v1/models")], end_stream=True)
        return http.data_to_send()

    async def begin(self, bodies: int, size: int) -> None:
        """Send so many beginnings of bodies, as far as Envoy takes them."""
        head = [*_HEAD, (":method", "POST"), (":path", "/v1/completions")]
        for _ in range(bodies):
            stream = self._http.get_next_available_stream_id()
            self._http.send_headers(stream, head)
            self._left[stream] = size
            await self._send(stream)
        while self._left:
            self._moved.clear()
            for stream in list(self._left):
                await self._send(stream)
            if self._left:
                await asyncio.wait_for(self._moved.wait(), 60)

    async def _send(self, stream: int) -> None:
        while left := self._left.get(stream):
            room = min(left, len(CHUNK), self._http.local_flow_control_window(stream))
            if room <= 0:
                return
            self._http.send_data(stream, CHUNK[:room])
            self._left[stream] -= room
            self._writer.write(self._http.data_to_send())
            await self._writer.drain()
        self._left.pop(stream, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            for event in self._http.receive_data(data):
                if isinstance(event, h2.events.StreamReset | h2.events.ResponseReceived):
                    self.reset += isinstance(event, h2.events.StreamReset)
                    assert event.stream_id is not None
                    self._left.pop(event.stream_id, None)
            self._writer.write(self._http.data_to_send())
            self._moved.set()


async def answers(gateway: Gateway) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        return (await gateway.post()).status == 200
    return False


async def is_refused(gateway: Gateway) -> bool:
    return (await gateway.post()).status == 503


async def gave_up(gateway: Gateway, requests: int) -> bool:
    return await stat(gateway, "http1_server_abort_dispatch.shed_load_count") >= requests


async def has_noticed(gateway: Gateway, bodies: int) -> bool:
    """Whether Envoy has looked at its memory since it holds so many: it looks fifty times a second, or less often."""
    return await pressure_percent(gateway) >= bodies * BODY_BYTES * 100 // MEMORY_BYTES


async def closed(gateway: Gateway) -> int:
    """Connections that had no request for too long."""
    return await stat(gateway, "http.clients.downstream_cx_idle_timeout")


async def pressure_percent(gateway: Gateway) -> int:
    return await stat(gateway, "fixed_heap.pressure")


async def stat(gateway: Gateway, name: str) -> int:
    async with gateway.client.get(f"{gateway.process.admin_url}/stats?filter={name}") as answer:
        return int((await answer.text()).rpartition(":")[2])


async def has_noticed_all_but_the_reset(gateway: Gateway, attack: Connection, sent: int) -> None:
    await until(lambda: has_noticed(gateway, sent - attack.reset))


def highest_bytes(gateway: Gateway) -> int:
    """The most that Envoy has had so far, of all kinds."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def _place(gateway: Gateway) -> tuple[str, int]:
    return host_and_port(gateway.url.removeprefix("http://"))
