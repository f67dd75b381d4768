"""One question over real sockets, on both event loops: asyncio's own, and uvloop as `serve` has it."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal

import pytest
import uvloop

from fairlead.engines.ask import Answer, Connection, Reason, UnansweredError, ask_once
from tests.engines.world import PATIENCE_S
from tests.waiting import until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MOST_BYTES = 1000
END_OF_TIME = 1 << 16  # pieces of an answer that does not end

# The other way, a hook, is for a whole folder.
pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy" fixture:DeprecationWarning')


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


@dataclass(frozen=True)
class Reply:
    """Each piece is written on its own, so that a client sees them apart."""

    pieces: tuple[bytes, ...] = ()
    then: Literal["keep", "close", "reset", "hang"] = "keep"


@dataclass
class Server:
    """Answers with `replies` in turn, and with OK when they are used up."""

    replies: list[Reply] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)  # of the connections that are open
    address: str = ""
    listener: asyncio.Server | None = None

    async def start(self) -> None:
        self.listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self.listener.sockets[0].getsockname())

    async def stop(self) -> None:
        assert self.listener is not None
        self.listener.close()
        for writer in self.writers:
            writer.transport.abort()
        await until(lambda: not self.writers)

    def will_reply(self, *pieces: bytes, then: Literal["keep", "close", "reset", "hang"] = "keep") -> None:
        self.replies.append(Reply(pieces, then))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            going = True
            while going:
                self.requests.append(await _request(reader))
                going = await _send(self.replies.pop(0) if self.replies else Reply((OK,)), reader, writer)
        self.writers.discard(writer)
        writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return head + await reader.readexactly(int(length or b"0"))


async def _send(reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the connection is kept."""
    for piece in reply.pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    if reply.then == "hang":
        await reader.read()
    if reply.then == "reset":
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    return reply.then == "keep"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    fake = Server()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def connection(server: Server) -> AsyncIterator[Connection]:
    kept = Connection(server.address)
    yield kept
    kept.close()


async def ask(connection: Connection, timeout_s: float = PATIENCE_S) -> Answer:
    return await connection.ask("/metrics", timeout_s, MOST_BYTES)


async def reason(connection: Connection, timeout_s: float = PATIENCE_S) -> Reason:
    with pytest.raises(UnansweredError) as failed:
        await ask(connection, timeout_s)
    return failed.value.reason


async def test_a_question_is_a_plain_get_that_wants_no_compression(server: Server, connection: Connection) -> None:
    answer = await ask(connection)
    assert (answer.status, answer.body) == (200, b"ok")
    assert server.requests == [
        b"GET /metrics HTTP/1.1\r\nhost: %s\r\naccept-encoding: identity\r\n\r\n" % server.address.encode()
    ]


@pytest.mark.parametrize(
    ("pieces", "status", "body"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 4\r\n", b"\r\nab", b"cd"), 200, b"abcd"),
        ((b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",), 503, b""),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), 204, b""),
        ((b"HTTP/1.1 307 Elsewhere\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n",), 307, b""),
        (
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"2;x=y\r\nab\r\n1\r\n", b"c\r\n0\r\n\r\n"),
            200,
            b"abc",
        ),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-sum: 1\r\n\r\n",), 200, b"a"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", OK), 200, b"ok"),
        ((b"HTTP/1.1 200 OK\r\nx-empty:\r\ncontent-length: 1\r\n\r\na",), 200, b"a"),
    ],
)
async def test_an_answer_is_read_to_its_end_and_the_connection_is_kept(
    server: Server, connection: Connection, pieces: tuple[bytes, ...], status: int, body: bytes
) -> None:
    server.will_reply(*pieces)
    answer = await ask(connection)
    assert (answer.status, answer.body) == (status, body)
    assert (await ask(connection)).body == b"ok"
    assert server.connections == 1


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\n",
    ],
)
async def test_after_an_answer_that_ends_the_connection_the_next_question_opens_another(
    server: Server, connection: Connection, head: bytes
) -> None:
    await ask(connection)
    server.will_reply(head, b"ab", b"cd", then="close")
    assert (await ask(connection)).body == b"abcd"
    assert (await ask(connection)).body == b"ok"
    assert (server.connections, len(server.requests)) == (2, 3)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nconnection: close", b"HTTP/1.0 200 OK"])
async def test_a_connection_that_the_server_says_it_will_close_is_asked_nothing_more(
    server: Server, connection: Connection, head: bytes
) -> None:
    server.will_reply(head + b"\r\ncontent-length: 1\r\n\r\na", then="hang")
    assert (await ask(connection)).body == b"a"
    assert (await ask(connection)).body == b"ok"
    assert server.connections == 2


async def test_a_kept_connection_that_the_server_closed_is_opened_again(server: Server, connection: Connection) -> None:
    await ask(connection)
    for writer in server.writers:
        writer.close()
    await until(lambda: not server.writers)
    assert (await ask(connection)).body == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_kept_connection_that_closes_on_the_question_is_opened_again_once(
    server: Server, connection: Connection, then: Literal["close", "reset"]
) -> None:
    await ask(connection)
    server.will_reply(then=then)
    assert (await ask(connection)).body == b"ok"
    assert (server.connections, len(server.requests)) == (2, 3)
    server.will_reply(then=then)
    server.will_reply(then=then)
    assert await reason(connection) == "connect"
    assert (server.connections, len(server.requests)) == (3, 5)


async def test_a_new_connection_that_closes_on_the_question_is_not_opened_again(
    server: Server, connection: Connection
) -> None:
    server.will_reply(then="close")
    assert await reason(connection) == "connect"
    assert (server.connections, len(server.requests)) == (1, 1)


async def test_a_question_whose_answer_had_begun_is_not_asked_again(server: Server, connection: Connection) -> None:
    await ask(connection)
    server.will_reply(b"H", then="close")
    assert await reason(connection) == "protocol"
    assert len(server.requests) == 2


async def test_a_connection_that_was_idle_for_long_is_opened_again(
    server: Server, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(connection)
    monkeypatch.setattr("fairlead.engines.ask._KEPT_S", 0.0)
    await ask(connection)
    assert server.connections == 2
    await until(lambda: len(server.writers) == 1)


async def test_nobody_at_the_port_is_a_failure_to_connect(server: Server, connection: Connection) -> None:
    await server.stop()
    assert await reason(connection) == "connect"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"\x00\xff garbage\r\n\r\n",),
        (b"HTTP/1.1 OK\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nab",),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\nx: ", *repeat(b"y" * 4096, END_OF_TIME)),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", *repeat(b"y" * 4096, END_OF_TIME)),
        (*repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, END_OF_TIME),),
    ],
    ids=["garbage", "status", "header", "length", "two lengths", "chunk", "upgrade", "headers", "trailers", "1xx"],
)
async def test_an_answer_that_is_not_http_or_has_no_end_is_given_up_and_its_connection_closed(
    server: Server, connection: Connection, pieces: tuple[bytes, ...]
) -> None:
    server.will_reply(*pieces, then="hang")
    assert await reason(connection) == "protocol"
    await until(lambda: not server.writers)
    assert (await ask(connection)).body == b"ok"


@pytest.mark.parametrize(
    ("head", "then", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", "close", "protocol"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nab", "close", "protocol"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nab", "close", "protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "close", "protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", "reset", "connect"),
    ],
)
async def test_an_answer_that_is_cut_is_none(
    server: Server,
    connection: Connection,
    head: bytes,
    then: Literal["close", "reset"],
    expected: Reason,
) -> None:
    server.will_reply(head, then=then)
    assert await reason(connection) == expected


async def test_a_body_of_the_most_bytes_is_read(server: Server, connection: Connection) -> None:
    server.will_reply(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % MOST_BYTES + b"x" * MOST_BYTES)
    assert len((await ask(connection)).body) == MOST_BYTES


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n",
    ],
)
async def test_a_larger_body_is_not_read_to_its_end_and_closes_the_connection(
    server: Server, connection: Connection, head: bytes
) -> None:
    server.will_reply(head, *repeat(b"x" * 4096, END_OF_TIME))
    assert await reason(connection) == "too_large"
    await until(lambda: not server.writers)
    assert (await ask(connection)).body == b"ok"


@pytest.mark.parametrize("pieces", [(), (b"HTTP/1.1 200 OK\r\ncontent-le",), (OK[:-1],)])
async def test_an_answer_that_does_not_come_in_time_closes_the_connection(
    server: Server, connection: Connection, pieces: tuple[bytes, ...]
) -> None:
    await ask(connection)
    server.will_reply(*pieces, then="hang")
    assert await reason(connection, 0.05) == "timeout"
    await until(lambda: not server.writers)
    assert (await ask(connection)).body == b"ok"
    assert len(server.requests) == 3


async def test_time_runs_out_while_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:  # nobody accepts
        host, port = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex((host, port))
        began_s = time.monotonic()
        assert await reason(Connection(f"{host}:{port}"), 0.1) == "timeout"
        assert time.monotonic() - began_s < PATIENCE_S
        for client in waiting:
            client.close()


async def test_cancelling_a_question_closes_its_connection_and_leaves_no_task(
    server: Server, connection: Connection
) -> None:
    before = asyncio.all_tasks()
    server.will_reply(b"HTTP/1.1 200 OK\r\n", then="hang")
    asking = asyncio.create_task(ask(connection))
    await until(lambda: server.requests)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: not server.writers)
    await until(lambda: asyncio.all_tasks() <= before)
    assert (await ask(connection)).body == b"ok"


async def test_an_answer_that_nobody_asked_for_closes_the_connection(server: Server, connection: Connection) -> None:
    await ask(connection)
    for writer in server.writers:
        writer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
    await until(lambda: not server.writers)
    assert (await ask(connection)).status == 200


async def test_a_second_answer_to_one_question_is_not_the_answer_to_the_next(
    server: Server, connection: Connection
) -> None:
    server.will_reply(OK + OK.replace(b"ok", b"no"))
    assert (await ask(connection)).body == b"ok"
    assert (await ask(connection)).body == b"ok"
    assert server.connections == 2


async def test_closing_closes_and_may_be_done_again(server: Server, connection: Connection) -> None:
    await ask(connection)
    connection.close()
    connection.close()
    await until(lambda: not server.writers)


async def test_the_time_that_the_answer_took_is_reported(server: Server, connection: Connection) -> None:
    began_s = time.perf_counter()
    answer = await ask(connection)
    assert 0 < answer.took_ms <= (time.perf_counter() - began_s) * 1e3
    assert server.connections == 1


async def test_one_question_alone_posts_json_and_leaves_no_connection(server: Server) -> None:
    answer = await ask_once(server.address, "/tokenize", PATIENCE_S, MOST_BYTES, post=b'{"a":1}')
    assert answer.body == b"ok"
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /tokenize HTTP/1.1\r\n")
    assert b"content-type: application/json\r\ncontent-length: 7" in head
    assert body == b'{"a":1}'
    await until(lambda: not server.writers)


async def test_what_is_posted_is_never_sent_twice(server: Server, connection: Connection) -> None:
    await ask(connection)
    server.will_reply(then="close")
    with pytest.raises(UnansweredError, match="connect"):
        await connection.ask("/v1/completions", PATIENCE_S, MOST_BYTES, post=b"{}")
    assert len(server.requests) == 2


async def test_an_ipv6_address_is_asked_and_named_with_its_brackets(server: Server) -> None:
    address = f"[::ffff:127.0.0.1]:{server.address.partition(':')[2]}"  # a machine may have no ::1
    answer = await ask_once(address, "/health", PATIENCE_S, MOST_BYTES)
    assert answer.body == b"ok"
    assert b"\r\nhost: %s\r\n" % address.encode() in server.requests[0]
