"""What operators see of the edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead.edge.http2 import Limits
from fairlead.edge.http2 import frames as f
from fairlead.edge.server import Server
from tests.edge.peer import data, headers, message
from tests.edge.test_calls import PATH
from tests.edge.world import echo_method
from tests.waiting import until

HELLO = f.PREFACE + f.frame(f.SETTINGS, 0, 0) + f.frame(f.SETTINGS, f.ACK, 0)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server(
        {PATH: echo_method()}, max_message_bytes=1 << 20, report_fault=print, limits=Limits(concurrent_streams=1)
    )
    yield made
    await made.drain(0)


async def say(server: Server, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection that sends these, once the server has answered all of it up to a PING."""
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1:0"))
    writer.write(b"".join((HELLO, *parts, f.frame(f.PING, 0, 0, b"all said"))))
    async with asyncio.timeout(60):
        await reader.readuntil(b"all said")
    return reader, writer


async def closed(server: Server) -> None:
    await until(lambda: not server.statistics().open_connections, "the server's end, which comes after ours")


async def test_connections_that_are_open_are_counted_until_they_end(server: Server) -> None:
    _, writer = await say(server)
    assert server.statistics().open_connections == 1
    writer.write_eof()
    await closed(server)
    assert server.statistics().faults == {}


async def test_streams_beyond_the_limit_are_counted_also_when_their_connection_is_gone(server: Server) -> None:
    _, writer = await say(server, headers(1), headers(3), headers(5))
    assert server.statistics().refused_streams == 2
    writer.close()
    await closed(server)
    assert server.statistics().refused_streams == 2


async def test_a_message_that_lacks_its_rest_is_counted_in_bytes(server: Server) -> None:
    _, writer = await say(server, headers(1), data(1, message(b"x" * 1000)[:605]))
    assert server.statistics().unfinished_bytes == 600
    writer.close()


async def test_a_connection_that_broke_a_rule_is_counted_by_its_error(server: Server) -> None:
    reader, writer = await say(server)
    writer.write(f.frame(f.DATA, 0, 7, b"on a stream that nobody opened"))
    async with asyncio.timeout(60):
        await reader.read()
    writer.close()
    await closed(server)
    assert server.statistics().faults == {"protocol_error": 1}
