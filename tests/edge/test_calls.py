"""gRPC on the core: messages, refusals, deadlines, and who is told what when a call ends."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.edge.grpc import (
    Call,
    Calls,
    Method,
    Services,
    Status,
    StatusError,
    UnfinishedBytes,
    server_streaming,
    unary,
)
from fairlead.edge.grpc.reading import Parts
from fairlead.edge.http2 import ErrorCode, Limits
from fairlead.edge.http2 import frames as f
from fairlead.edge.http2.headers import header_block
from tests.edge.peer import BLOCK, GRPC_HEADERS, Peer, data, headers, message, without

PATH = "/service/Method"
LIMIT = 100_000


@dataclass
class Echo:
    """Sends back what comes; `trace` is what it was told."""

    call: Call
    trace: list[str]
    replies: bool = True

    def message(self, message: bytes) -> None:
        self.trace.append(f"message {len(message)}")
        if self.replies:
            self.call.send(message)

    def half_closed(self) -> None:
        self.trace.append("half-closed")
        self.call.finish()

    def closed(self) -> None:
        self.trace.append("closed")


@dataclass
class Timer:
    seconds: float
    act: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Server:
    """Calls of one method over a connection without sockets."""

    methods: Mapping[str, Method] | None = None
    replies: bool = True
    held: UnfinishedBytes = field(default_factory=lambda: UnfinishedBytes(1 << 20))
    limits: Limits | None = None
    trace: list[str] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    woken: int = 0

    def __post_init__(self) -> None:
        methods = self.methods or {PATH: Method(lambda call: Echo(call, self.trace, self.replies))}
        self.peer = Peer(self.limits)
        services = Services(methods, LIMIT, self._later, self.held, self.faults.append)
        self.calls = Calls(self.peer.connection, services, self._wake)

    def _later(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, act))
        return self.timers[-1]

    def _wake(self) -> None:
        self.woken += 1

    def say(self, *parts: bytes) -> None:
        connection = self.peer.connection
        self.calls.handle(connection.receive(b"".join(parts)))
        while connection.has_more:
            self.calls.handle(connection.receive(b""))
        self.peer.collect()

    @property
    def messages(self) -> list[bytes]:
        """Whole messages that came back on stream 1."""
        whole, found = b"".join(each.payload for each in self.peer.sent if (each.kind, each.stream_id) == (0, 1)), []
        while whole:
            length = int.from_bytes(whole[1:5], "big")
            found.append(whole[5 : 5 + length])
            whole = whole[5 + length :]
        return found

    @property
    def status(self) -> tuple[Status, str] | None:
        """grpc-status and grpc-message of stream 1."""
        for each in self.peer.sent:
            if (each.kind, each.stream_id) == (f.HEADERS, 1) and each.flags & f.END_STREAM:
                fields = dict(self.peer.decoder.decode(each.payload))
                return Status(int(fields["grpc-status"])), str(fields.get("grpc-message", ""))
        return None


def block(*more: tuple[bytes, bytes], path: bytes = b"/service/Method") -> bytes:
    return header_block([(b":path", path), *without(b":path"), *more])


def test_a_call_goes_from_its_first_message_to_its_status() -> None:
    server = Server()
    server.say(headers(1), data(1, message(b"one")))
    server.say(data(1, message(b"two")))
    server.say(data(1, b"", ends=True))
    assert server.messages == [b"one", b"two"]
    assert server.status == (Status.OK, "")
    assert server.trace == ["message 3", "message 3", "half-closed", "closed"]


def test_a_stream_without_a_message_makes_no_state_of_the_application() -> None:
    server = Server()
    server.say(headers(1), f.rst_stream(1, ErrorCode.CANCEL), headers(3), data(3, b"", ends=True))
    assert server.trace == []


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.lists(st.integers(1, 1000), max_size=12))
def test_messages_are_read_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    server = Server()
    whole = b"".join(message(bytes([n % 251]) * size) for n, size in enumerate(sizes))
    where = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    server.say(headers(1), *(data(1, whole[a:b]) for a, b in pairwise(where)))
    server.say(data(1, b"", ends=True))
    assert server.messages == [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    assert (server.status, server.held.bytes) == ((Status.OK, ""), 0)


def test_a_message_that_is_announced_too_long_is_refused_before_it_comes() -> None:
    server = Server()
    server.say(headers(1), data(1, b"\x00\xff\xff\xff\xff"))
    assert server.status == (Status.RESOURCE_EXHAUSTED, f"a message of 4294967295 bytes; at most {LIMIT} are taken")
    assert server.trace == []


def test_the_longest_message_is_taken_and_gets_its_window_at_once() -> None:
    server = Server(limits=Limits(stream_window_bytes=1000))
    whole = message(b"x" * LIMIT)
    server.say(headers(1), data(1, whole[:600]))
    (update,) = [each for each in server.peer.sent if each.kind == f.WINDOW_UPDATE and each.stream_id == 1]
    assert update.number >= len(whole) - 1000
    server.say(*(data(1, whole[at : at + 16_384]) for at in range(600, len(whole), 16_384)))
    assert server.trace == [f"message {LIMIT}"]


def test_a_compressed_message_is_refused_and_says_what_is_taken() -> None:
    server = Server()
    server.say(headers(1), data(1, b"\x01\x00\x00\x00\x01x"))
    assert server.status == (Status.UNIMPLEMENTED, "messages must not be compressed")
    (only,) = [each for each in server.peer.sent if each.kind == f.HEADERS]
    assert ("grpc-accept-encoding", "identity") in server.peer.decoder.decode(only.payload)


def test_a_method_that_there_is_not_is_unimplemented() -> None:
    server = Server()
    server.say(headers(1, block(path=b"/service/Other")))
    assert server.status == (Status.UNIMPLEMENTED, "there is no method /service/Other")


@pytest.mark.parametrize("fields", [without(b"content-type"), [(b":method", b"GET"), *without(b":method")]])
def test_what_is_not_grpc_is_answered_in_a_sentence(fields: list[tuple[bytes, bytes]]) -> None:
    server = Server()
    server.say(headers(1, header_block(fields)), data(1, b"hello", ends=True))
    first, body, end = server.peer.sent
    assert dict(server.peer.decoder.decode(first.payload))[":status"] == "415"
    assert (b"gRPC" in body.payload, end.flags) == (True, f.END_STREAM)


def test_a_client_that_ends_amid_a_message_is_told() -> None:
    server = Server()
    server.say(headers(1), data(1, message(b"hello")[:7], ends=True))
    assert server.status == (Status.INVALID_ARGUMENT, "the client ended amid a message")


def test_a_deadline_ends_a_call() -> None:
    server = Server()
    server.say(headers(1, block((b"grpc-timeout", b"250m"))), data(1, message(b"x")))
    (timer,) = server.timers
    timer.act()
    server.peer.collect()
    assert timer.seconds == 0.25
    assert server.status == (Status.DEADLINE_EXCEEDED, "the deadline is over")
    assert (server.trace[-1], server.woken) == ("closed", 1)


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"-1S", b"123456789S", b"1 S", b"1x"])
def test_what_is_no_timeout_is_refused(text: bytes) -> None:
    server = Server()
    server.say(headers(1, block((b"grpc-timeout", text))))
    assert server.status == (Status.INTERNAL, "grpc-timeout is not a timeout")


def test_a_call_that_ends_before_its_deadline_lets_its_timer_go() -> None:
    server = Server()
    server.say(headers(1, block((b"grpc-timeout", b"1H"))), data(1, message(b"x"), ends=True))
    assert server.timers[0].cancelled


def test_a_reset_of_the_client_closes_the_call_once() -> None:
    server = Server()
    server.say(headers(1), data(1, message(b"x")), f.rst_stream(1, ErrorCode.CANCEL))
    server.calls.close()
    assert server.trace == ["message 1", "closed"]


def test_a_lost_connection_closes_every_call() -> None:
    server = Server()
    server.say(headers(1), data(1, message(b"x")), headers(3), data(3, message(b"y")))
    server.calls.close()
    assert server.trace == ["message 1", "message 1", "closed", "closed"]


def test_a_fault_of_the_connection_closes_every_call() -> None:
    server = Server()
    server.say(headers(1), data(1, message(b"x")), f.window_update(0, 0))
    server.calls.close()
    assert server.trace == ["message 1", "closed"]


def test_replies_may_come_at_any_later_time_and_after_the_end_do_nothing() -> None:
    calls: list[Call] = []

    def make(call: Call) -> Echo:
        calls.append(call)
        return Echo(call, [], replies=False)

    server = Server({PATH: Method(make)})
    server.say(headers(1), data(1, message(b"x")))
    (call,) = calls
    call.send(b"later")
    call.finish(Status.UNAVAILABLE, "50 % of it: ü")
    call.send(b"too late")
    call.finish()
    server.peer.collect()
    assert (server.messages, server.woken) == ([b"later"], 2)
    assert server.status == (Status.UNAVAILABLE, "50 %25 of it: %C3%BC")


def test_a_fault_of_a_method_ends_its_call_and_no_other() -> None:
    class Broken(Echo):
        def message(self, message: bytes) -> None:
            if message == b"bad":
                raise RuntimeError("on purpose")
            super().message(message)

    server = Server({PATH: Method(lambda call: Broken(call, []))})
    server.say(headers(1), data(1, message(b"good")), headers(3), data(3, message(b"bad")))
    server.say(data(1, message(b"still good")))
    assert server.messages == [b"good", b"still good"]
    assert "on purpose" in server.faults[0]


def test_a_unary_method_is_a_function() -> None:
    server = Server({PATH: unary(bytes.upper)})
    server.say(headers(1), data(1, message(b"hello"), ends=True))
    assert (server.messages, server.status) == ([b"HELLO"], (Status.OK, ""))


def test_a_unary_method_may_refuse() -> None:
    def refuse(_: bytes) -> bytes:
        raise StatusError(Status.NOT_FOUND, "nothing here")

    server = Server({PATH: unary(refuse)})
    server.say(headers(1), data(1, message(b"hello"), ends=True))
    assert server.status == (Status.NOT_FOUND, "nothing here")


def test_a_unary_method_takes_one_message() -> None:
    server = Server({PATH: unary(bytes.upper)})
    server.say(headers(1), data(1, message(b"a") + message(b"b"), ends=True))
    assert server.status == (Status.INVALID_ARGUMENT, "this method takes one message")


def test_a_streaming_method_sends_until_its_caller_leaves() -> None:
    ended: list[bool] = []

    def begin(message: bytes, call: Call) -> Callable[[], None]:
        for n in range(3):
            call.send(message + b"%d" % n)
        return lambda: ended.append(True)

    server = Server({PATH: server_streaming(begin)})
    server.say(headers(1), data(1, message(b"n"), ends=True))
    assert (server.messages, ended) == ([b"n0", b"n1", b"n2"], [])
    server.say(f.rst_stream(1, ErrorCode.CANCEL))
    assert ended == [True]


def test_bytes_of_unfinished_messages_are_bounded_over_all_streams() -> None:
    server = Server(held=UnfinishedBytes(50_000), limits=Limits(stream_window_bytes=1 << 20))
    for number in range(3, 30, 2):
        server.say(headers(number), data(number, message(b"x" * 90_000)[:9000]))
    assert server.held.bytes <= 50_000
    last = server.peer.sent[-2]
    fields: dict[Any, Any] = dict(server.peer.decoder.decode(last.payload))
    assert fields["grpc-status"] == str(int(Status.RESOURCE_EXHAUSTED))
    assert fields["grpc-message"] == "too many bytes of unfinished messages are held; try again"
    server.say(*(f.rst_stream(number, ErrorCode.CANCEL) for number in range(3, 30, 2)))
    assert server.held.bytes == 0


def test_a_message_that_never_ends_ends_its_call() -> None:
    server = Server()
    server.say(headers(1), data(1, message(b"hello")[:7]))
    for now_s in (0.0, 10.0, 31.0):
        server.calls.tick(now_s)
    server.peer.collect()
    assert server.status is not None
    assert server.status[0] is Status.DEADLINE_EXCEEDED
    assert server.held.bytes == 0


def test_calls_that_live_as_long_as_the_server_end_at_its_drain() -> None:
    server = Server({PATH: Method(lambda call: Echo(call, []), ends_at_drain=True)})
    server.say(headers(1), data(1, message(b"x")))
    server.calls.end_at_drain()
    server.peer.collect()
    assert server.status == (Status.UNAVAILABLE, "the server is draining")


def test_headers_and_first_reply_are_there_before_a_block_of_trailers() -> None:
    server = Server()
    server.say(headers(1, BLOCK), data(1, message(b"x"), ends=True))
    assert [each.kind for each in server.peer.sent] == [f.HEADERS, f.DATA, f.HEADERS]
    assert dict(GRPC_HEADERS)[b"te"] == b"trailers"


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_message_that_is_sent_in_parts_arrives_as_one(head: bytes, body: bytes) -> None:
    class InParts(Echo):
        def message(self, message: bytes) -> None:
            rest = memoryview(message)[len(head) :]
            self.call.send(message[: len(head)], (rest[:100], bytes(rest[100:])))

    server = Server({PATH: Method(lambda call: InParts(call, []))})
    server.say(headers(1), data(1, message(head + body)))
    assert server.messages == [head + body]


def test_a_method_reads_a_message_in_the_parts_that_it_came_in() -> None:
    read: list[list[bytes]] = []

    def note(parts: Parts) -> bytes:
        read.append([bytes(part) for part in parts])
        return b"".join(parts)

    server = Server({PATH: Method(lambda call: Echo(call, []), read=note)})
    sent = message(b"abcdef")
    server.say(headers(1), data(1, sent[:7]))
    server.say(data(1, sent[7:9]))
    server.say(data(1, sent[9:] + message(b"gh")))
    assert read == [[b"ab", b"cd", b"ef"], [b"gh"]]
    assert server.messages == [b"abcdef", b"gh"]


def test_what_waits_to_be_written_can_be_taken_in_its_pieces() -> None:
    taken = []
    for take in (lambda c: c.take_output(), lambda c: b"".join(c.take_pieces())):
        server = Server()
        server.calls.handle(server.peer.connection.receive(headers(1) + data(1, message(b"abc"))))
        assert server.peer.connection.output_pieces > 1
        taken.append(take(server.peer.connection))
        assert server.peer.connection.output_pieces == 0
    assert taken[0] == taken[1]


def test_what_a_receiver_holds_is_free_once_its_call_is_over_without_a_garbage_collection() -> None:
    made: list[weakref.ref[Echo]] = []

    def make(call: Call) -> Echo:
        receiver = Echo(call, [])
        made.append(weakref.ref(receiver))
        return receiver

    server = Server({PATH: Method(make)})
    gc.disable()
    try:
        server.say(headers(1), data(1, message(b"x")))
        assert made[0]() is not None
        server.say(data(1, ends=True))
        assert made[0]() is None
    finally:
        gc.enable()
