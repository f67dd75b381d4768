"""A connection's end, whatever the peer has done meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from fairlead.edge.server import Server
from tests.edge.peer import headers
from tests.edge.test_calls import PATH
from tests.edge.test_statistics import HELLO, closed
from tests.edge.world import echo_method
from tests.waiting import until


async def close_what_the_peer_has_left() -> None:
    server = Server({PATH: echo_method()}, max_message_bytes=1 << 20, report_fault=print)
    port = await server.start("127.0.0.1:0")
    peer = socket.create_connection(("127.0.0.1", port))
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        await loop.sock_sendall(peer, HELLO + headers(1))
        await until(lambda: server.statistics().open_connections, "the server's beginning, which comes after ours")
        await loop.sock_recv(peer, 1 << 16)  # closed with bytes unread, it would send the reset itself
    peer.close()
    (connection,) = server._connections
    connection.close()  # the peer's kernel answers our GOAWAY with a reset at once, before the loop knows
    await closed(server)
    await server.drain(0)


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_its_peer_has_just_left_is_closed_without_an_error(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(close_what_the_peer_has_left())
