"""Hypothesis with the `h2` library as the client: whatever legal things it does, in whatever pieces they arrive, both
sides end with the same idea of every stream."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.edge.http2 import Connection, ErrorCode, RequestData, RequestStarted, StreamEnded
from fairlead.edge.http2.frames import frame
from fairlead.edge.http2.headers import header_block
from tests.edge.peer import GRPC_HEADERS, Peer, headers

ANSWER = header_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = header_block([(b"grpc-status", b"0")])

small = st.integers(0, 7)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("data"), small, st.integers(0, 40_000), st.booleans(), st.integers(0, 255)),
        st.tuples(st.just("reset"), small),
        st.tuples(st.just("trailers"), small),
        st.tuples(st.just("window"), st.sampled_from([1, 3, 100, 65_535, 200_000])),
        st.tuples(st.just("ping")),
        st.tuples(st.just("priority"), small),
        st.tuples(st.just("answer"), small, st.integers(0, 50_000)),
        st.tuples(st.just("finish"), small),
        st.tuples(st.just("kill"), small),
        st.tuples(st.just("credit"), st.sampled_from([1, 1000, 100_000])),
    ),
    max_size=40,
)


class Pair:
    """Our core as the server, h2 as the client, joined by bytes cut anywhere."""

    def __init__(self, cuts: Any) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=False))
        self.server = Connection()
        self.cuts = cuts
        self.requests: dict[int, RequestStarted] = {}
        self.got: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.reset_seen: set[int] = set()
        self.sent: dict[int, bytearray] = {}
        self.done_sending: set[int] = set()
        self.client_reset: set[int] = set()
        self.answered: dict[int, bytearray] = {}
        self.heard: dict[int, bytearray] = {}
        self.finished: set[int] = set()
        self.heard_end: set[int] = set()
        self.killed: set[int] = set()
        self.client.initiate_connection()
        self.exchange()

    def exchange(self) -> None:
        """Until nobody has anything to say."""
        while True:
            to_server, to_client = self.client.data_to_send(), self.server.take_output()
            if not to_server and not to_client:
                return
            for piece in self._pieces(to_server):
                self._serve(self.server.receive(piece))
                while self.server.has_more:
                    self._serve(self.server.receive(b""))
                assert self.server.fault is None
            for event in self.client.receive_data(to_client):
                self._hear(event)

    def _pieces(self, data: bytes) -> list[bytes]:
        if not data:
            return []
        where = sorted({0, len(data), *(cut % len(data) for cut in self.cuts)})
        return [data[a:b] for a, b in pairwise(where)]

    def _serve(self, events: Any) -> None:
        for event in events:
            number = event.stream.id
            if isinstance(event, RequestStarted):
                self.requests[number] = event
                self.got[number] = bytearray()
                if event.ended:
                    self.ended.add(number)
            elif isinstance(event, RequestData):
                assert number not in self.ended
                self.got[number] += event.data
                if event.ended:
                    self.ended.add(number)
            elif isinstance(event, StreamEnded):
                self.reset_seen.add(number)

    def _hear(self, event: Any) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.heard.setdefault(event.stream_id, bytearray()).extend(event.data)
        elif isinstance(event, h2.events.StreamEnded):
            self.heard_end.add(event.stream_id)
        elif isinstance(event, h2.events.ConnectionTerminated):
            raise AssertionError(f"the server ended the connection: {event}")


def act(pair: Pair, action: tuple[Any, ...]) -> None:
    client, server = pair.client, pair.server
    kind, *arguments = action
    if kind == "open":
        number = client.get_next_available_stream_id()
        client.send_headers(number, [*GRPC_HEADERS, (b"x-number", b"%d" % number)], end_stream=arguments[0])
        pair.sent[number] = bytearray()
        if arguments[0]:
            pair.done_sending.add(number)
        return
    if kind == "ping":
        client.ping(b"12345678")
        return
    if kind == "window":
        client.increment_flow_control_window(arguments[0])
        return
    live = [n for n in pair.sent if n not in pair.client_reset and n not in pair.killed]
    if kind == "credit":
        for number in live:
            if number not in pair.heard_end:
                client.increment_flow_control_window(arguments[0], number)
        return
    if not live:
        return
    number = live[arguments[0] % len(live)]
    stream = pair.requests[number].stream if number in pair.requests else None
    try:
        if kind == "data" and number not in pair.done_sending:
            _, size, ends, padding = arguments
            size = min(size, client.local_flow_control_window(number) - 256, client.max_outbound_frame_size - 256)
            payload = bytes(max(0, size))
            client.send_data(number, payload, end_stream=ends, pad_length=padding or None)
            pair.sent[number] += payload
            if ends:
                pair.done_sending.add(number)
        elif kind == "reset":
            client.reset_stream(number, 2)
            pair.client_reset.add(number)
        elif kind == "trailers" and number not in pair.done_sending:
            client.send_headers(number, [(b"x-trailer", b"1")], end_stream=True)
            pair.done_sending.add(number)
        elif kind == "priority":
            client.prioritize(number, weight=16, depends_on=0)
    except (h2.exceptions.StreamClosedError, h2.exceptions.ProtocolError):
        return  # the server has finished the stream, and h2 knows
    if stream is None or number in pair.finished:
        return
    if kind == "answer":
        if number not in pair.answered:
            pair.answered[number] = bytearray()
            server.send_headers(stream, ANSWER)
        payload = bytes(arguments[1])
        server.send_data(stream, payload)
        pair.answered[number] += payload
    elif kind == "finish":
        if number not in pair.answered:
            pair.answered[number] = bytearray()
            server.send_headers(stream, ANSWER)
        server.send_trailers(stream, TRAILERS)
        pair.finished.add(number)
    elif kind == "kill":
        server.reset(stream, ErrorCode.INTERNAL_ERROR)
        pair.killed.add(number)


@settings(max_examples=150)
@given(actions, st.lists(st.integers(0, 10_000_000), max_size=6))
def test_both_sides_agree_on_every_stream(todo: list[tuple[Any, ...]], cuts: list[int]) -> None:
    pair = Pair(cuts)
    for action in todo:
        act(pair, action)
        pair.exchange()
    pair.client.increment_flow_control_window(2**30)
    for number in pair.sent:
        if number not in pair.client_reset | pair.killed | pair.heard_end:
            pair.client.increment_flow_control_window(2**30, number)
    pair.exchange()

    assert pair.requests.keys() == pair.sent.keys()
    for number, request in pair.requests.items():
        assert request.request.fields[b"x-number"] == b"%d" % number
        if number in pair.client_reset | pair.killed:
            continue
        if number not in pair.finished:  # what was under way when we finished is dropped
            assert pair.got[number] == pair.sent[number]
            assert (number in pair.ended) == (number in pair.done_sending)
        assert pair.heard.get(number, b"") == pair.answered.get(number, b"")
        assert (number in pair.heard_end) == (number in pair.finished)
    over = pair.client_reset | pair.killed | pair.finished
    assert pair.server.streams.live.keys() == pair.sent.keys() - over


@settings(max_examples=300)
@given(st.binary(max_size=400), st.booleans())
def test_nothing_that_a_peer_sends_raises(noise: bytes, greeted: bool) -> None:
    peer = Peer(greeted=greeted)
    peer.say(noise)
    peer.connection.tick(1.0)
    peer.collect()


frames = st.lists(
    st.tuples(
        st.integers(0, 11), st.integers(0, 255), st.sampled_from([0, 1, 1, 3, 5, 2, 2**31 - 1]), st.binary(max_size=40)
    ),
    max_size=30,
)


@settings(max_examples=400)
@given(frames)
def test_no_frame_at_any_time_raises(todo: list[tuple[int, int, int, bytes]]) -> None:
    peer = Peer()
    peer.say(headers(1))
    for kind, flags, number, payload in todo:
        peer.say(frame(kind, flags, number, payload))
    assert peer.connection.work.left <= peer.connection.limits.work_burst
