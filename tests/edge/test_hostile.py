"""Peers that mean harm: each is cut off, or costs no more than it is worth.

Bounds are in work, bytes and frames, so they hold on any machine. Envoy's own habit, a RST_STREAM(INTERNAL_ERROR) at
the end of every request, is here as well: it must never count as an attack.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from fairlead.edge.grpc import UnfinishedBytes
from fairlead.edge.http2 import ErrorCode, Limits
from fairlead.edge.http2 import frames as f
from fairlead.edge.http2.headers import header_block
from fairlead.edge.server import Server
from tests.edge.peer import BLOCK, GRPC_HEADERS, Peer, data, frames_of, headers, message, setting
from tests.edge.test_calls import PATH
from tests.edge.test_calls import Server as CallServer
from tests.edge.world import echo_method

CALM = ErrorCode.ENHANCE_YOUR_CALM
MANY = 100_000


def flood(make: Callable[[int], bytes], *first: bytes, limits: Limits | None = None) -> tuple[Peer, int]:
    """Send `make(0)`, `make(1)`, ... until the connection ends; the peer, and how many it took."""
    peer = Peer(limits)
    peer.say(*first)
    for n in range(MANY):
        if peer.connection.is_closed:
            return peer, n
        peer.connection.receive(make(n))
        peer.connection.take_output()
    return peer, MANY


FLOODS: dict[str, tuple[Callable[[int], bytes], list[bytes]]] = {
    "PING": (lambda _: f.frame(f.PING, 0, 0, b"12345678"), []),
    "acknowledgements of no PING": (lambda _: f.frame(f.PING, f.ACK, 0, b"12345678"), []),
    "SETTINGS": (lambda n: setting(4, 65_535 + n % 2), []),
    "acknowledgements of SETTINGS": (lambda _: f.frame(f.SETTINGS, f.ACK, 0), []),
    "empty DATA": (lambda _: data(1), [headers(1)]),
    "padding and nothing else": (lambda _: data(1, b"\x01\x00", flags=f.PADDED), [headers(1)]),
    "PRIORITY": (lambda n: f.frame(f.PRIORITY, 0, 2 * n + 1, b"\x00\x00\x00\x00\x10"), []),
    "WINDOW_UPDATE": (lambda _: f.window_update(0, 1), []),
    "WINDOW_UPDATE on a stream": (lambda _: f.window_update(1, 1), [headers(1)]),
    "unknown frames": (lambda _: f.frame(0x77, 0, 0, b"x"), []),
    "GOAWAY": (lambda _: f.goaway(0, ErrorCode.NO_ERROR), []),
    "RST_STREAM of a stream that is gone": (
        lambda _: f.rst_stream(1, ErrorCode.CANCEL),
        [headers(1), f.rst_stream(1, ErrorCode.CANCEL)],
    ),
    "rapid reset": (lambda n: headers(2 * n + 1) + f.rst_stream(2 * n + 1, ErrorCode.CANCEL), []),
    "malformed requests": (lambda n: headers(2 * n + 1, header_block([(b":path", b"/")])), []),
    "streams beyond the limit": (lambda n: headers(2 * n + 1), []),
    "DATA for streams that are gone": (
        lambda _: data(1, b"x" * 100),
        [headers(1), f.rst_stream(1, ErrorCode.CANCEL)],
    ),
    "bytes one by one in frames of their own": (lambda _: data(1, b"x"), [headers(1)]),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_frames_that_carry_nothing_is_cut_off(name: str) -> None:
    make, first = FLOODS[name]
    peer, count = flood(make, *first)
    limits = peer.connection.limits
    assert peer.connection.is_closed
    assert peer.connection.fault is not None
    assert peer.connection.fault.code == CALM
    assert count <= limits.work_burst + limits.concurrent_streams + 1


def test_a_header_block_of_endless_continuation_is_cut_off() -> None:
    peer = Peer()
    peer.say(headers(1, b"", flags=0))
    for _ in range(peer.connection.limits.continuations + 1):
        peer.say(f.frame(f.CONTINUATION, 0, 1, b""))
    assert peer.goaway == CALM


def test_a_header_block_too_long_is_cut_off_before_it_is_decoded() -> None:
    peer = Peer()
    peer.say(headers(1, BLOCK, flags=0), f.frame(f.CONTINUATION, 0, 1, b"\x00" * 16_384))
    assert peer.goaway == CALM


def test_an_hpack_bomb_is_cut_off() -> None:
    peer = Peer()
    big = b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000  # into the table, once
    peer.say(headers(1, BLOCK + big + b"\xbe" * 10_000))
    assert peer.goaway == CALM


def test_a_field_of_a_number_that_never_ends_costs_no_more_than_its_block() -> None:
    peer = Peer()
    peer.say(headers(1, b"\x7f" + b"\xff" * 16_000))
    assert peer.goaway == ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize("change", [b"\x20", b"\x3f\xe1\x1f", b"\x3f\x00"])
def test_a_block_of_changes_of_the_tables_size_is_cut_off_before_it_is_decoded(change: bytes) -> None:
    peer = Peer()
    peer.say(headers(1, change * 2 + b"\x20" + BLOCK))
    assert peer.goaway == ErrorCode.COMPRESSION_ERROR


def test_a_block_may_change_the_tables_size_twice() -> None:
    peer = Peer()
    peer.say(headers(1, b"\x20\x20" + BLOCK))
    assert peer.goaway is None
    assert peer.stream(1) is not None


def test_different_blocks_do_not_fill_the_memory_of_blocks() -> None:
    peer = Peer()
    peer.say(headers(1, b"\x20" + BLOCK), f.rst_stream(1, ErrorCode.CANCEL))
    for n in range(500):
        number = 2 * n + 3
        peer.say(headers(number, header_block([*GRPC_HEADERS, (b"x", b"%d" % n)])))
        peer.connection.reset(peer.stream(number), ErrorCode.CANCEL)
    assert len(peer.connection._headers._memo) <= 64


def test_envoys_reset_at_the_end_of_every_request_is_no_attack() -> None:
    server = CallServer()
    reset = ErrorCode.INTERNAL_ERROR
    for number in range(1, 20_000, 2):
        server.say(headers(number), data(number, message(b"hello")), f.rst_stream(number, reset))
        server.peer.sent.clear()
    assert not server.peer.connection.is_closed
    assert server.peer.connection.streams.live == {}


def test_a_peer_whose_window_is_3_bytes_is_served_in_pieces() -> None:
    server = CallServer()
    server.say(setting(4, 3), headers(1), data(1, message(b"x" * 300), ends=True))
    for _ in range(200):
        server.say(f.window_update(1, 3))
    assert server.messages == [b"x" * 300]
    assert server.status is not None


def test_what_waits_for_windows_is_bounded() -> None:
    server = CallServer(limits=Limits(waiting_send_bytes=500_000))
    server.say(setting(4, 0), *(headers(n) + data(n, message(b"x" * 10_000)) for n in range(1, 201, 2)))
    assert server.peer.goaway == CALM
    assert sum(len(each.payload) for each in server.peer.sent if each.kind == f.DATA) == 0


def test_a_stream_whose_window_stays_shut_is_given_up() -> None:
    server = CallServer()
    server.say(setting(4, 0), headers(1), data(1, message(b"x"), ends=True))
    for now_s in (0.0, 1.0, 20.0, 32.0):
        server.calls.handle(server.peer.connection.tick(now_s))
    server.peer.collect()
    assert server.peer.reset_code(1) == ErrorCode.CANCEL
    assert server.peer.connection.streams.live == {}


def test_settings_that_move_many_windows_pay_for_each() -> None:
    peer = Peer()
    peer.say(*(headers(n) for n in range(1, 2001, 2)))
    before = peer.connection.work.left
    peer.say(setting(4, 70_000))
    assert before - peer.connection.work.left >= 250


def test_many_small_messages_in_one_frame_are_paid_for() -> None:
    server = CallServer(replies=False)
    server.say(headers(1), *(data(1, b"\x00" * 16_380) for _ in range(10)))
    assert server.peer.goaway == CALM
    assert len(server.trace) < 8000


def test_ten_thousand_open_streams_cost_little_and_are_refused_beyond_the_limit() -> None:
    tracemalloc.start()
    try:
        server = CallServer()
        before = tracemalloc.get_traced_memory()[0]
        for n in range(10_000):
            server.say(headers(2 * n + 1))
            server.peer.sent.clear()
            if server.peer.connection.is_closed:
                break
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(server.peer.connection.streams.live) == server.peer.connection.limits.concurrent_streams
    assert used < 4 << 20
    assert server.trace == []


def test_memory_is_flat_over_many_requests_with_bodies() -> None:
    server = CallServer(replies=False, held=UnfinishedBytes(1 << 20))
    body = message(b"x" * 60_000)

    def request(number: int) -> None:
        parts = [data(number, body[at : at + 16_384]) for at in range(0, len(body), 16_384)]
        server.say(headers(number), *parts, f.rst_stream(number, ErrorCode.INTERNAL_ERROR))
        server.peer.sent.clear()
        server.trace.clear()

    for n in range(200):
        request(2 * n + 1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(200, 2200):
            request(2 * n + 1)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000
    assert server.held.bytes == 0


# ---- with sockets ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def listening() -> AsyncIterator[Callable[..., asyncio.Future[int]]]:
    servers: list[Server] = []

    async def start(**limits: float) -> int:
        server = Server(
            {PATH: echo_method()},
            max_message_bytes=1 << 20,
            report_fault=pytest.fail,
            limits=Limits(**limits),  # type: ignore[arg-type]
        )
        servers.append(server)
        return await server.start("127.0.0.1:0")

    yield start  # type: ignore[misc]
    for server in servers:
        await server.drain(0)


async def rest_of(reader: asyncio.StreamReader) -> list[bytes]:
    """Everything until the server closes; the debug data of its GOAWAYs."""
    async with asyncio.timeout(60):
        whole = await reader.read()
    return [each.payload[8:] for each in frames_of(whole) if each.kind == f.GOAWAY]


HELLO = f.PREFACE + f.frame(f.SETTINGS, 0, 0)


def _silences() -> Iterator[tuple[str, bytes, dict[str, float], bytes]]:
    yield "nothing at all", b"", {"preface_s": 1.0}, b"no preface in time"
    yield "half a preface", f.PREFACE[:10], {"preface_s": 1.0}, b"no preface in time"
    yield "no acknowledgement of SETTINGS", HELLO, {"settings_ack_s": 1.0}, b"SETTINGS were not acknowledged in time"
    half_open = {"keepalive_idle_s": 1.0, "keepalive_answer_s": 1.0}
    yield "no answer to a PING", HELLO + f.frame(f.SETTINGS, f.ACK, 0), half_open, b"no answer to a PING"


@pytest.mark.parametrize(("case", "said", "limits", "why"), list(_silences()))
async def test_a_peer_that_falls_silent_is_closed(
    listening: Callable[..., asyncio.Future[int]], case: str, said: bytes, limits: dict[str, float], why: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", await listening(**limits))
    writer.write(said)
    assert await rest_of(reader) == [why], case
    writer.close()


async def test_a_peer_that_stops_reading_is_no_longer_read_from_and_then_closed(
    listening: Callable[..., asyncio.Future[int]],
) -> None:
    port = await listening(stalled_send_s=1.0)
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    writer.write(HELLO + setting(4, 2**31 - 1) + f.window_update(0, 2**30) + f.frame(f.SETTINGS, f.ACK, 0))
    sent = 0
    big = message(b"x" * 60_000)
    parts = [big[at : at + 16_384] for at in range(0, len(big), 16_384)]

    async def send_for_ever() -> None:
        nonlocal sent
        for number in range(1, 200_000, 2):
            writer.write(headers(number) + b"".join(data(number, part) for part in parts))
            sent += len(big)
            await writer.drain()

    with pytest.raises(OSError):  # noqa: PT011 - reset or broken pipe, as it comes
        await asyncio.wait_for(send_for_ever(), 60)
    assert sent < 64 << 20


async def test_a_peer_that_speaks_http1_is_told_what_this_is(listening: Callable[..., asyncio.Future[int]]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", await listening())
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 100_000)
    assert await rest_of(reader) == [b"this is not HTTP/2; gRPC clients start with its preface"]
    writer.close()


async def test_a_connection_is_kept_by_its_answers_to_pings(listening: Callable[..., asyncio.Future[int]]) -> None:
    port = await listening(keepalive_idle_s=0.5, keepalive_answer_s=1.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO + f.frame(f.SETTINGS, f.ACK, 0))
    pings = 0
    async with asyncio.timeout(60):
        while pings < 3:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == f.PING:
                pings += 1
                writer.write(f.frame(f.PING, f.ACK, 0, payload))
    writer.close()


async def test_a_peer_that_sends_much_at_once_gets_its_turn_with_others(
    listening: Callable[..., asyncio.Future[int]],
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", await listening(events_a_turn=8))
    wanted = range(1, 1001, 2)
    requests = b"".join(headers(n) + data(n, message(b"hello"), ends=True) for n in wanted)
    writer.write(HELLO + f.frame(f.SETTINGS, f.ACK, 0) + requests)
    answered: set[int] = set()
    async with asyncio.timeout(60):
        while len(answered) < len(wanted):
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == f.HEADERS and head[4] & f.END_STREAM:
                answered.add(int.from_bytes(head[5:], "big"))
    writer.close()
    assert answered == set(wanted)
