"""Connections of the admin port: idle ones make room, and who asks is answered whatever others keep open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from fairlead.admin.port import MOST_CONNECTIONS, AdminPort
from fairlead.processes import free_ports
from tests.waiting import until


@dataclass
class Listening:
    number: int
    port: AdminPort
    may_answer: asyncio.Event
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self, sent: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        writer.write(sent)
        self.writers.append(writer)
        return reader

    async def ask(self, path: str = "/") -> asyncio.StreamReader:
        return await self.connect(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    may_answer = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def slow(_: web.Request) -> web.Response:
        await may_answer.wait()
        return web.Response(text="ok")

    app = web.Application()
    app.add_routes([web.get("/", answer), web.get("/slow", slow)])
    port = AdminPort(app)
    (number,) = free_ports(1)
    await port.open("127.0.0.1", number)
    made = Listening(number, port, may_answer)
    yield made
    may_answer.set()
    for writer in made.writers:
        writer.close()
    await port.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_connections_that_are_kept_open_make_room_for_who_asks(listening: Listening, sent: bytes) -> None:
    """Whether they sent nothing, half a request, or were answered."""
    oldest = await listening.connect(sent)
    for _ in range(MOST_CONNECTIONS + 50):
        await listening.connect(sent)
    await asyncio.wait_for(oldest.read(), 60)  # its end
    assert await (await listening.ask()).readuntil(b"ok")
    await until(lambda: listening.port.connections <= MOST_CONNECTIONS)


async def test_who_is_being_answered_is_answered_in_full(listening: Listening) -> None:
    slow = await listening.ask("/slow")
    for _ in range(MOST_CONNECTIONS + 10):
        await listening.connect()
    await until(lambda: listening.port.connections <= MOST_CONNECTIONS)
    listening.may_answer.set()
    assert await slow.readuntil(b"ok")
