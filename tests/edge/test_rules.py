"""What a peer may not do, and what it may: h2spec's cases for a server, and what RFC 9113 says about each.

Connection faults end in GOAWAY with the code; stream faults in RST_STREAM, and the connection goes on.
"""

from __future__ import annotations

import time

import pytest

from fairlead.edge.http2 import ErrorCode, Limits, RequestData, RequestStarted
from fairlead.edge.http2 import frames as f
from fairlead.edge.http2.headers import header_block
from tests.edge.peer import BLOCK, GRPC_HEADERS, Peer, data, frames_of, headers, message, setting, without

PROTOCOL, SIZE, FLOW = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.FLOW_CONTROL_ERROR
CLOSED, COMPRESSION = ErrorCode.STREAM_CLOSED, ErrorCode.COMPRESSION_ERROR
PRIORITY = b"\x00\x00\x00\x00\x10"


def on_itself(stream_id: int) -> bytes:
    return stream_id.to_bytes(4, "big") + b"\x10"


CONNECTION_FAULTS = {
    # 4. frames
    "a DATA frame beyond the largest (4.2)": ([headers(1), data(1, b"x" * 16_385)], SIZE),
    "a HEADERS frame beyond the largest (4.2)": ([headers(1, b"x" * 16_385)], SIZE),
    "a header block that is not HPACK (4.3)": ([headers(1, b"\xff\xff\xff\xff\xff")], COMPRESSION),
    "PRIORITY amid a header block (4.3)": (
        [headers(1, BLOCK[:5], flags=0), f.frame(f.PRIORITY, 0, 1, PRIORITY)],
        PROTOCOL,
    ),
    "HEADERS amid another's header block (4.3)": ([headers(1, BLOCK[:5], flags=0), headers(3)], PROTOCOL),
    # 5. streams
    "DATA on an idle stream (5.1)": ([data(1, b"x")], PROTOCOL),
    "RST_STREAM on an idle stream (5.1)": ([f.rst_stream(1, ErrorCode.CANCEL)], PROTOCOL),
    "WINDOW_UPDATE on an idle stream (5.1)": ([f.window_update(1, 100)], PROTOCOL),
    "CONTINUATION on an idle stream (5.1)": ([f.frame(f.CONTINUATION, f.END_HEADERS, 1, BLOCK)], PROTOCOL),
    "a stream of an even number (5.1.1)": ([headers(2)], PROTOCOL),
    "a stream of a lower number than the last (5.1.1)": ([headers(5), headers(3)], PROTOCOL),
    "HEADERS that depend on their own stream (5.3.1)": (
        [headers(1, on_itself(1) + BLOCK, flags=f.END_HEADERS | f.PRIORITISED)],
        PROTOCOL,
    ),
    "PRIORITY that depends on its own stream (5.3.1)": (
        [headers(1), f.frame(f.PRIORITY, 0, 1, on_itself(1))],
        PROTOCOL,
    ),
    # 6. frame definitions
    "DATA on stream 0 (6.1)": ([data(0, b"x")], PROTOCOL),
    "DATA with padding longer than itself (6.1)": ([headers(1), data(1, b"\x06hello", flags=f.PADDED)], PROTOCOL),
    "a padded DATA without anything (6.1)": ([headers(1), data(1, b"", flags=f.PADDED)], SIZE),
    "HEADERS on stream 0 (6.2)": ([headers(0)], PROTOCOL),
    "HEADERS with padding longer than itself (6.2)": (
        [headers(1, b"\xff" + BLOCK, flags=f.END_HEADERS | f.PADDED)],
        PROTOCOL,
    ),
    "HEADERS too short for their priority (6.2)": ([headers(1, b"\x00", flags=f.END_HEADERS | f.PRIORITISED)], SIZE),
    "PRIORITY on stream 0 (6.3)": ([f.frame(f.PRIORITY, 0, 0, PRIORITY)], PROTOCOL),
    "PRIORITY that is not 5 bytes (6.3)": ([headers(1), f.frame(f.PRIORITY, 0, 1, b"abcd")], SIZE),
    "RST_STREAM on stream 0 (6.4)": ([f.rst_stream(0, ErrorCode.CANCEL)], PROTOCOL),
    "RST_STREAM that is not 4 bytes (6.4)": ([headers(1), f.frame(f.RST_STREAM, 0, 1, b"abc")], SIZE),
    "an acknowledgement of SETTINGS with content (6.5)": ([f.frame(f.SETTINGS, f.ACK, 0, b"\x00" * 6)], SIZE),
    "SETTINGS on a stream (6.5)": ([f.frame(f.SETTINGS, 0, 1)], PROTOCOL),
    "SETTINGS of a length that is no multiple of 6 (6.5)": ([f.frame(f.SETTINGS, 0, 0, b"abc")], SIZE),
    "SETTINGS_ENABLE_PUSH of 2 (6.5.2)": ([setting(2, 2)], PROTOCOL),
    "SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1 (6.5.2)": ([setting(4, 2**31)], FLOW),
    "SETTINGS_MAX_FRAME_SIZE below its range (6.5.2)": ([setting(5, 16_383)], PROTOCOL),
    "SETTINGS_MAX_FRAME_SIZE above its range (6.5.2)": ([setting(5, 2**24)], PROTOCOL),
    "PUSH_PROMISE from a client (6.6)": (
        [headers(1), f.frame(f.PUSH_PROMISE, 4, 1, b"\x00\x00\x00\x02" + BLOCK)],
        PROTOCOL,
    ),
    "PING on a stream (6.7)": ([f.frame(f.PING, 0, 1, b"12345678")], PROTOCOL),
    "PING that is not 8 bytes (6.7)": ([f.frame(f.PING, 0, 0, b"123456")], SIZE),
    "GOAWAY on a stream (6.8)": ([f.frame(f.GOAWAY, 0, 1, b"\x00" * 8)], PROTOCOL),
    "GOAWAY that is too short (6.8)": ([f.frame(f.GOAWAY, 0, 0, b"\x00" * 7)], SIZE),
    "WINDOW_UPDATE of nothing (6.9)": ([f.window_update(0, 0)], PROTOCOL),
    "WINDOW_UPDATE that is not 4 bytes (6.9)": ([f.frame(f.WINDOW_UPDATE, 0, 0, b"abc")], SIZE),
    "a connection's window above 2^31-1 (6.9.1)": ([f.window_update(0, 2**31 - 1), f.window_update(0, 1)], FLOW),
    "a stream's window above 2^31-1 by SETTINGS (6.9.2)": (
        [headers(1), f.window_update(1, 2**31 - 1 - 65_535), setting(4, 65_536)],
        FLOW,
    ),
    "CONTINUATION without HEADERS (6.10)": ([headers(1), f.frame(f.CONTINUATION, f.END_HEADERS, 1, BLOCK)], PROTOCOL),
    "CONTINUATION on stream 0 (6.10)": (
        [headers(1, BLOCK[:5], flags=0), f.frame(f.CONTINUATION, f.END_HEADERS, 0, BLOCK[5:])],
        PROTOCOL,
    ),
    "CONTINUATION after the end of a header block (6.10)": (
        [headers(1, BLOCK[:9], flags=0), *[f.frame(f.CONTINUATION, f.END_HEADERS, 1, BLOCK[9:])] * 2],
        PROTOCOL,
    ),
    # RFC 7541
    "an index beyond both tables (2.3.3)": ([headers(1, b"\xc6" + BLOCK)], COMPRESSION),
    "index 0 (6.1)": ([headers(1, b"\x80" + BLOCK)], COMPRESSION),
    "a table larger than our SETTINGS allow (6.3)": ([headers(1, b"\x21" + BLOCK)], COMPRESSION),
    "a change of the table's size after a field (4.2)": ([headers(1, BLOCK + b"\x20")], COMPRESSION),
    "Huffman padding longer than 7 bits (5.2)": ([headers(1, b"\x00\x01x\x82\x1f\xff" + BLOCK)], COMPRESSION),
    "Huffman padding that is not ones (5.2)": ([headers(1, b"\x00\x01x\x81\x18" + BLOCK)], COMPRESSION),
    "Huffman's EOS inside a string (5.2)": ([headers(1, b"\x00\x01x\x84\xff\xff\xff\xff" + BLOCK)], COMPRESSION),
    "a string longer than its block (5.2)": ([headers(1, BLOCK + b"\x00\x7fx")], COMPRESSION),
}


@pytest.mark.parametrize("case", CONNECTION_FAULTS)
def test_a_fault_of_the_connection_ends_it(case: str) -> None:
    said, code = CONNECTION_FAULTS[case]
    peer = Peer()
    peer.say(*said)
    assert peer.goaway == code


@pytest.mark.parametrize("case", CONNECTION_FAULTS)
def test_after_its_end_a_connection_hears_nothing(case: str) -> None:
    peer = Peer()
    peer.say(*CONNECTION_FAULTS[case][0])
    assert peer.say(headers(99), f.frame(f.PING, 0, 0, b"12345678")) == []


def malformed(*fields: tuple[bytes, bytes]) -> bytes:
    return headers(1, header_block(fields), ends=True)


STREAM_FAULTS = {
    "DATA after the peer's own end (5.1)": ([headers(1, ends=True), data(1, b"x")], CLOSED),
    "HEADERS after the peer's own end (5.1)": ([headers(1, ends=True), headers(1, ends=True)], CLOSED),
    "DATA after the peer's own reset (5.1)": ([headers(1), f.rst_stream(1, ErrorCode.CANCEL), data(1, b"x")], CLOSED),
    "HEADERS after the peer's own reset (5.1)": ([headers(1), f.rst_stream(1, ErrorCode.CANCEL), headers(1)], CLOSED),
    "WINDOW_UPDATE of nothing on a stream (6.9)": ([headers(1), f.window_update(1, 0)], PROTOCOL),
    "a stream's window above 2^31-1 (6.9.1)": ([headers(1), f.window_update(1, 2**31 - 1)], FLOW),
    "trailers that do not end the stream (8.1)": ([headers(1), headers(1, header_block([(b"a", b"b")]))], PROTOCOL),
    "a pseudo-header in trailers (8.1)": (
        [headers(1), headers(1, header_block([(b":path", b"/")]), ends=True)],
        PROTOCOL,
    ),
    "an upper-case name (8.2.1)": ([malformed(*GRPC_HEADERS, (b"X-Test", b"ok"))], PROTOCOL),
    "a name with a space (8.2.1)": ([malformed(*GRPC_HEADERS, (b"x test", b"ok"))], PROTOCOL),
    "an empty name (8.2.1)": ([malformed(*GRPC_HEADERS, (b"", b"ok"))], PROTOCOL),
    "a value with a line break (8.2.1)": ([malformed(*GRPC_HEADERS, (b"x", b"a\r\nb: c"))], PROTOCOL),
    "an unknown pseudo-header (8.3)": ([malformed(*GRPC_HEADERS, (b":test", b"ok"))], PROTOCOL),
    "a pseudo-header of answers (8.3)": ([malformed((b":status", b"200"), *GRPC_HEADERS)], PROTOCOL),
    "a pseudo-header after a field (8.3)": ([malformed((b"a", b"b"), *GRPC_HEADERS)], PROTOCOL),
    "a connection-specific field (8.2.2)": ([malformed(*GRPC_HEADERS, (b"connection", b"keep-alive"))], PROTOCOL),
    "te other than trailers (8.2.2)": ([malformed(*without(b"te"), (b"te", b"trailers, deflate"))], PROTOCOL),
    "an empty :path (8.3.1)": ([malformed((b":path", b""), *without(b":path"))], PROTOCOL),
    "no :method (8.3.1)": ([malformed(*without(b":method"))], PROTOCOL),
    "no :scheme (8.3.1)": ([malformed(*without(b":scheme"))], PROTOCOL),
    "no :path (8.3.1)": ([malformed(*without(b":path"))], PROTOCOL),
    ":method twice (8.3.1)": ([malformed((b":method", b"POST"), *GRPC_HEADERS)], PROTOCOL),
    ":scheme twice (8.3.1)": ([malformed((b":scheme", b"http"), *GRPC_HEADERS)], PROTOCOL),
    ":path twice (8.3.1)": ([malformed((b":path", b"/"), *GRPC_HEADERS)], PROTOCOL),
    "a content-length that is no number (8.1.1)": ([malformed(*GRPC_HEADERS, (b"content-length", b"x"))], PROTOCOL),
    "more DATA than its content-length (8.1.1)": (
        [headers(1, header_block([*GRPC_HEADERS, (b"content-length", b"1")])), data(1, b"test")],
        PROTOCOL,
    ),
    "less DATA than its content-length (8.1.1)": (
        [
            headers(1, header_block([*GRPC_HEADERS, (b"content-length", b"9")])),
            data(1, b"te"),
            data(1, b"st", ends=True),
        ],
        PROTOCOL,
    ),
    "no DATA where content-length announces some (8.1.1)": (
        [headers(1, header_block([*GRPC_HEADERS, (b"content-length", b"9")]), ends=True)],
        PROTOCOL,
    ),
}


@pytest.mark.parametrize("case", STREAM_FAULTS)
def test_a_fault_of_a_stream_resets_it_and_the_connection_goes_on(case: str) -> None:
    said, code = STREAM_FAULTS[case]
    peer = Peer()
    peer.say(*said)
    assert peer.reset_code(1) == code
    assert [each.kind for each in peer.say(f.frame(f.PING, 0, 0, b"12345678"))] == [f.PING]


ALLOWED = {
    "a frame of an unknown type (4.1)": [f.frame(0x16, 0, 0, b"12345678")],
    "a frame of an unknown type on a stream (4.1)": [headers(1), f.frame(0x16, 0xFF, 1, b"12345678")],
    "undefined flags (4.1)": [f.frame(f.SETTINGS, 0xFE, 0)],
    "the reserved bit (4.1)": [f.frame(f.PING, 0, 2**31, b"12345678")],
    "PRIORITY on an idle stream (5.1)": [f.frame(f.PRIORITY, 0, 7, PRIORITY)],
    "WINDOW_UPDATE after the peer's own end (5.1)": [headers(1, ends=True), f.window_update(1, 1)],
    "PRIORITY after the peer's own end (5.1)": [headers(1, ends=True), f.frame(f.PRIORITY, 0, 1, PRIORITY)],
    "RST_STREAM after the peer's own end (5.1)": [headers(1, ends=True), f.rst_stream(1, ErrorCode.CANCEL)],
    "WINDOW_UPDATE after a reset (5.1)": [headers(1), f.rst_stream(1, ErrorCode.CANCEL), f.window_update(1, 1)],
    "RST_STREAM after a reset (5.1)": [headers(1), *[f.rst_stream(1, ErrorCode.CANCEL)] * 2],
    "an unknown setting (6.5.2)": [setting(0xFF, 1)],
    "an unknown error code (7)": [headers(1), f.frame(f.RST_STREAM, 0, 1, b"\x00\x00\x00\xff")],
    "GOAWAY (6.8)": [f.goaway(0, ErrorCode.NO_ERROR)],
    "DATA with padding (6.1)": [headers(1), data(1, b"\x05hello\x00\x00\x00\x00\x00", flags=f.PADDED)],
    "a table of no size (RFC 7541, 6.3)": [headers(1, b"\x20" + BLOCK)],
    "HEADERS in pieces (6.10)": [
        headers(1, BLOCK[:5], flags=0),
        f.frame(f.CONTINUATION, 0, 1, BLOCK[5:9]),
        f.frame(f.CONTINUATION, f.END_HEADERS, 1, BLOCK[9:]),
    ],
    "HEADERS with priority and padding (6.2)": [
        headers(1, b"\x02" + PRIORITY + BLOCK + b"\x00\x00", flags=f.END_HEADERS | f.PRIORITISED | f.PADDED)
    ],
    "content-length that fits (8.1.1)": [
        headers(1, header_block([*GRPC_HEADERS, (b"content-length", b"4")])),
        data(1, b"te"),
        data(1, b"st", ends=True),
    ],
    "trailers (8.1)": [headers(1), data(1, b"x"), headers(1, header_block([(b"a", b"b")]), ends=True)],
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_allowed_changes_nothing(case: str) -> None:
    peer = Peer()
    peer.say(*ALLOWED[case])
    assert peer.reset_code(1) is None
    assert [each.kind for each in peer.say(f.frame(f.PING, 0, 0, b"12345678"))] == [f.PING]


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_not_http2_is_told_so(said: bytes) -> None:
    peer = Peer(greeted=False)
    peer.say(said)
    assert peer.goaway == PROTOCOL


@pytest.mark.parametrize("first", [headers(1), f.frame(f.PING, 0, 0, b"12345678"), f.frame(f.SETTINGS, f.ACK, 0)])
def test_the_first_frame_is_settings(first: bytes) -> None:
    peer = Peer(greeted=False)
    peer.say(f.PREFACE, first)
    assert peer.goaway == PROTOCOL


def test_our_first_frame_is_settings_that_ask_for_no_dynamic_table() -> None:
    first, *_ = Peer(greeted=False).sent
    assert (first.kind, first.payload[:6]) == (f.SETTINGS, b"\x00\x01\x00\x00\x00\x00")


def test_settings_and_pings_are_acknowledged() -> None:
    answers = Peer().say(setting(4, 1000), f.frame(f.PING, 0, 0, b"12345678"))
    assert [(each.kind, each.flags, each.payload) for each in answers] == [
        (f.SETTINGS, f.ACK, b""),
        (f.PING, f.ACK, b"12345678"),
    ]


def test_a_stream_that_both_sides_have_ended_takes_nothing_more() -> None:
    peer = Peer()
    peer.open(1, ends=True)
    peer.connection.send_trailers(peer.stream(), BLOCK)
    peer.say(data(1, b"x"))
    assert peer.goaway == CLOSED


def test_what_was_under_way_when_we_reset_a_stream_is_dropped() -> None:
    peer = Peer()
    peer.open(1)
    peer.connection.reset(peer.stream(), ErrorCode.CANCEL)
    peer.say(data(1, b"x"), headers(1, header_block([(b"a", b"b")]), ends=True))
    assert (peer.goaway, peer.data_of(1)) == (None, b"")


def test_more_streams_than_allowed_are_refused_and_others_live() -> None:
    peer = Peer(Limits(concurrent_streams=2))
    peer.say(headers(1), headers(3), headers(5))
    assert [peer.reset_code(n) for n in (1, 3, 5)] == [None, None, ErrorCode.REFUSED_STREAM]
    peer.say(f.rst_stream(1, ErrorCode.CANCEL), headers(7))
    assert peer.reset_code(7) is None


def test_data_beyond_a_streams_window_resets_it() -> None:
    peer = Peer(Limits(stream_window_bytes=100))
    peer.say(headers(1), data(1, b"x" * 100), data(1, b"x"))
    assert (peer.reset_code(1), peer.data_of(1)) == (FLOW, b"x" * 100)


def test_data_beyond_the_connections_window_ends_it() -> None:
    peer = Peer(Limits(connection_window_bytes=65_535, stream_window_bytes=1 << 20))
    peer.connection._receive_window = 10_000  # as if the peer had ignored what it was not given
    peer.say(headers(1), data(1, b"x" * 10_001))
    assert peer.goaway == FLOW


def test_a_connections_window_is_filled_again() -> None:
    peer = Peer(Limits(connection_window_bytes=65_535, stream_window_bytes=1 << 20))
    updates = peer.say(headers(1), data(1, b"x" * 16_384), data(1, b"x" * 16_384), data(1, b"x" * 16_384))
    assert [(each.stream_id, each.number) for each in updates if each.kind == f.WINDOW_UPDATE] == [(0, 49_152)]


def test_data_waits_for_windows_and_then_goes_on_in_order() -> None:
    peer = Peer()
    peer.say(setting(4, 3), headers(1))
    stream = peer.stream()
    peer.connection.send_headers(stream, BLOCK)
    peer.connection.send_data(stream, b"abcdef")
    peer.connection.send_data(stream, b"gh")
    peer.connection.send_trailers(stream, BLOCK)
    first = [each.payload for each in peer.collect() if each.kind == f.DATA]
    second = [each.payload for each in peer.say(f.window_update(1, 4)) if each.kind == f.DATA]
    third = peer.say(setting(4, 100))
    assert (first, second) == ([b"abc"], [b"def", b"g"])
    assert [each.kind for each in third] == [f.SETTINGS, f.DATA, f.HEADERS, f.RST_STREAM]  # the acknowledgement first


def test_a_window_below_zero_is_filled_before_anything_goes() -> None:
    peer = Peer()
    peer.say(setting(4, 10), headers(1))
    peer.connection.send_data(peer.stream(), b"x" * 20)
    peer.collect()
    peer.say(setting(4, 0))
    assert not [each for each in peer.say(f.window_update(1, 10)) if each.kind == f.DATA]
    assert [each.payload for each in peer.say(f.window_update(1, 5)) if each.kind == f.DATA] == [b"x" * 5]


def test_a_server_that_ends_first_tells_the_client_to_stop() -> None:
    peer = Peer()
    peer.open(1)
    peer.connection.send_trailers(peer.stream(), BLOCK)
    assert [each.kind for each in peer.collect()] == [f.HEADERS, f.RST_STREAM]
    assert peer.reset_code(1) == ErrorCode.NO_ERROR


def test_large_data_is_cut_into_frames_that_the_peer_takes() -> None:
    peer = Peer()
    peer.say(f.window_update(0, 1 << 20), setting(4, 1 << 20), headers(1))
    peer.connection.send_data(peer.stream(), b"x" * 40_000)
    assert [len(each.payload) for each in peer.collect()] == [16_384, 16_384, 7232]


def test_alike_header_blocks_are_decoded_once_and_others_each() -> None:
    peer = Peer()
    peer.say(headers(1, b"\x20" + BLOCK), headers(3), headers(5), headers(7, BLOCK + header_block([(b"a", b"b")])))
    requests = [event.request for event in peer.events if isinstance(event, RequestStarted)]
    assert requests[1] is requests[2]
    assert [request.fields.get(b"a") for request in requests] == [None, None, None, b"b"]


def test_a_client_that_never_gives_up_its_table_is_decoded_with_it() -> None:
    peer = Peer()
    first, second = (peer.encoder.encode([*GRPC_HEADERS, (b"x-test", b"value")]) for _ in range(2))
    peer.say(headers(1, first), headers(3, second), headers(5, second))
    requests = [event.request for event in peer.events if isinstance(event, RequestStarted)]
    assert len(second) < len(first)
    assert [request.fields[b"x-test"] for request in requests] == [b"value"] * 3


def test_a_drain_serves_what_crosses_it_and_then_no_more() -> None:
    peer = Peer()
    peer.open(1)
    peer.connection.drain()
    goaway, ping = peer.collect()
    peer.open(3)
    (last,) = peer.say(f.frame(f.PING, f.ACK, 0, ping.payload))
    peer.say(headers(5), data(5, b"x"))
    assert (goaway.number, last.number) == (2**31 - 1, 3)
    assert [event.stream.id for event in peer.events if isinstance(event, RequestStarted)] == [1, 3]
    assert (peer.goaway, peer.connection.is_idle) == (None, False)
    for number in (1, 3):
        peer.say(f.rst_stream(number, ErrorCode.CANCEL))
    assert peer.connection.is_idle


def test_messages_may_come_in_any_pieces() -> None:
    whole = f.PREFACE + f.frame(f.SETTINGS, 0, 0) + headers(1) + data(1, message(b"hello"), ends=True)
    peer = Peer(greeted=False)
    for byte in whole:
        peer.say(bytes((byte,)))
    assert (peer.data_of(1), peer.has_ended(1)) == (message(b"hello"), True)


def test_a_turn_reports_no_more_than_its_share_of_events() -> None:
    peer = Peer(Limits(events_a_turn=10))
    events = peer.connection.receive(b"".join(headers(n) for n in range(1, 61, 2)))
    assert len(events) == 10
    assert peer.connection.has_more
    peer.events += events
    peer.say()
    assert len(peer.events) == 30


def test_stream_numbers_up_to_the_last_are_taken() -> None:
    peer = Peer()
    peer.say(headers(2**31 - 1, ends=True))
    peer.connection.send_trailers(peer.stream(2**31 - 1), BLOCK)
    assert [each.stream_id for each in peer.collect()] == [2**31 - 1]
    assert peer.goaway is None


def test_output_is_frames_and_nothing_else() -> None:
    connection = Peer(greeted=False).connection
    assert frames_of(connection.take_output()) == []


@pytest.mark.parametrize("step", [1, 5, 16_384, 16_393, 40_000, 1 << 20])
def test_a_long_run_of_full_frames_is_the_same_however_it_is_cut(step: int) -> None:
    parts = [bytes([n]) * f.MAX_FRAME_BYTES for n in range(9)]
    frames = [data(1, part) for part in parts]
    frames[4:4] = [data(3, b"between"), data(3, b"z" * f.MAX_FRAME_BYTES)]
    whole = b"".join(frames) + data(1, b"end", ends=True)
    peer = Peer()
    peer.say(headers(1), headers(3))
    for start in range(0, len(whole), step):
        peer.say(whole[start : start + step])
    got = {n: b"".join(e.data for e in peer.events if isinstance(e, RequestData) and e.stream.id == n) for n in (1, 3)}
    assert got == {1: b"".join(parts) + b"end", 3: b"between" + b"z" * f.MAX_FRAME_BYTES}


def test_a_run_of_full_frames_beyond_a_window_ends_its_stream() -> None:
    peer = Peer(Limits(stream_window_bytes=3 * f.MAX_FRAME_BYTES))
    peer.say(headers(1), headers(3))
    peer.say(data(1, bytes(f.MAX_FRAME_BYTES)) * 4, data(3, b"goes on"))
    assert [peer.reset_code(n) for n in (1, 3)] == [ErrorCode.FLOW_CONTROL_ERROR, None]


def test_a_connection_that_broke_a_rule_keeps_nothing_of_what_it_was_sent() -> None:
    peer = Peer(greeted=False)
    peer.say(b"GET / HTTP/1.1\r\n\r\n")
    assert peer.connection.fault is not None
    assert peer.connection.fault.__traceback__ is None


def test_a_long_answer_through_a_small_window_is_not_copied_at_each_of_its_openings() -> None:
    peer = Peer()
    peer.open()
    answer = bytes(20 << 20)
    peer.connection.send_data(peer.stream(), answer)
    started_s = time.thread_time()
    for _ in range(1500):
        peer.say(f.window_update(0, 1), f.window_update(1, 1))
    assert time.thread_time() - started_s < 2.0  # copies of the rest took some 8 s
    sent = sum(len(each.payload) for each in peer.sent if each.kind == f.DATA)
    assert sent == f.DEFAULT_WINDOW + 1500
