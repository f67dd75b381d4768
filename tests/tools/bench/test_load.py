"""The load generator against real servers, good and bad, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fairlead.tools.bench.load import Load, Plan, Result
from fairlead.tools.bench.upstream import Upstream

StartServer = Callable[[], asyncio.Protocol]


class Answers(asyncio.Protocol):
    """Gives `answer` to whatever comes, or closes the connection when there is none."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        if self._answer:
            self._transport.write(self._answer)
        else:
            self._transport.close()


async def run(
    server: StartServer, *, rate_per_s: float = 0.0, is_chosen: bool = False, body_bytes: int = 512
) -> Result:
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    async with listening:
        address = "{}:{}".format(*listening.sockets[0].getsockname())
        plan = Plan(
            address=address,
            model="m",
            body_bytes=body_bytes,
            seed=0,
            connections=4,
            warm_up_s=0.05,
            measured_s=0.3,
            rate_per_s=rate_per_s,
            is_chosen=is_chosen,
        )
        return await Load(plan).run()


@pytest.mark.parametrize("body_bytes", [512, 200_000])
async def test_a_closed_loop_is_answered_by_the_upstream_without_errors(body_bytes: int) -> None:
    result = await run(Upstream, body_bytes=body_bytes)

    assert (result.errors, result.first_error) == (0, "")
    assert result.requests >= result.measured > 4
    assert 0 < result.p50_us <= result.p99_us


async def test_an_answer_in_chunks_is_an_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    result = await run(lambda: Answers(head + b"2\r\n{}\r\n0\r\n\r\n"))

    assert (result.errors, result.first_error) == (0, "")
    assert result.measured > 4


async def test_an_open_loop_sends_at_its_rate() -> None:
    result = await run(Upstream, rate_per_s=100.0)

    assert result.errors == 0
    assert result.requests == pytest.approx(35, abs=1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", "answered b'HTTP/1.1 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nlonger", "not of the length it announces"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "not of the length it announces"),
        (b"", "connection lost"),
    ],
)
async def test_a_bad_answer_is_an_error_and_its_reason_is_told(answer: bytes, reason: str) -> None:
    result = await run(lambda: Answers(answer))

    assert (result.errors, result.requests) == (4, 0)
    assert reason in result.first_error


async def test_in_an_open_loop_requests_that_find_no_connection_any_more_are_errors_too() -> None:
    result = await run(lambda: Answers(b""), rate_per_s=100.0)

    assert result.errors == pytest.approx(35, abs=1)
    assert "connection lost" in result.first_error


async def test_where_a_processor_must_choose_an_answer_without_its_choice_is_an_error() -> None:
    result = await run(Upstream, is_chosen=True)

    assert result.first_error == "passed without the processor"


async def test_an_answer_of_another_upstream_than_the_chosen_one_is_an_error() -> None:
    head = b"HTTP/1.1 200 OK\r\nx-upstream: 127.0.0.1:1\r\nx-fairlead-endpoint: 127.0.0.1:2\r\n"

    result = await run(lambda: Answers(head + b"content-length: 0\r\n\r\n"), is_chosen=True)

    assert result.first_error == "served by another upstream than the chosen one"


async def test_the_upstream_takes_requests_in_any_pieces() -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for piece in (b"POST / HTTP/1.1\r\nConte", b"nt-Length: 4\r\n\r", b"\nab", b"cdGET / HTTP/1.1\r\n\r\n"):
            writer.write(piece)
            await writer.drain()
        answers = 0
        async with asyncio.timeout(60):
            while answers < 2:
                answers += (await reader.readuntil(b"}}")).count(b"200 OK")
        writer.close()
        await writer.wait_closed()
    assert answers == 2
