"""A message is read the same by hand as by protobuf, however its bytes are cut into parts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.edge.grpc import StatusError
from fairlead.extproc import messages
from fairlead.extproc.messages import RequestBody, read
from fairlead.extproc.pb import ext_proc_pb2 as pb
from tests.extproc.world import request_body, request_headers, response_body, with_subset

LONG = 20_000


def parts_of(whole: bytes, cuts: list[int]) -> list[bytes | memoryview]:
    """`whole` in non-empty parts, which are views and bytes in turn."""
    ends = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    pieces = [whole[start:stop] for start, stop in itertools.pairwise(ends)] or [whole]
    return [memoryview(piece) if number % 2 else piece for number, piece in enumerate(pieces)]


def as_request(whole: bytes, cuts: list[int]) -> pb.ProcessingRequest | None:
    """None for bytes that are refused."""
    try:
        message = read(parts_of(whole, cuts))
    except StatusError:
        return None
    return message.as_request() if isinstance(message, RequestBody) else message


def by_protobuf(whole: bytes) -> pb.ProcessingRequest | None:
    try:
        return pb.ProcessingRequest.FromString(whole)
    except Exception:  # whatever it raises, it is no message
        return None


bodies = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=4), st.integers(0, LONG)),
)
requests = st.one_of(
    st.builds(lambda body, end: request_body(body, end=end), bodies, st.booleans()),
    st.builds(lambda body: with_subset(request_body(body), ["10.0.0.1:1"]), bodies),
    st.builds(lambda body, end: response_body(body, end=end), bodies, st.booleans()),
    st.builds(lambda value: request_headers(extra={"x": value}), st.text("ab", max_size=LONG)),
)
cuts = st.lists(st.integers(0, 3 * LONG), max_size=5)
changes = st.lists(st.tuples(st.one_of(st.integers(0, 14), st.integers(-4, -1)), st.integers(0, 255)), max_size=3)


@given(requests, cuts, changes, st.binary(max_size=3))
@example(request_body(b""), [], [], b"")
@example(request_body(b"x" * LONG), [1], [], b"")  # the key apart from its length
@example(request_body(b"x" * LONG), [-1], [], b"")
@example(request_body(b"x" * LONG), [], [(-1, 0)], b"")  # `false`, written out
@example(request_body(b"x" * LONG), [], [(-1, 2)], b"")
@example(request_body(b"x" * LONG), [], [(-2, 0x18)], b"")  # a field that is not known
@example(request_body(b"x" * LONG), [], [], request_body(b"y").SerializeToString()[:2])
@example(request_body(b"x" * LONG), [], [], b"B\x00")  # metadata, but none, as Envoy sends it
@example(with_subset(request_body(b"x" * LONG), ["10.0.0.1:1"]), [-1, -10, -40], [], b"")
@example(request_body(b"x" * LONG), [], [], response_body(b"y").SerializeToString())  # the last of a oneof counts
def test_what_is_read_by_hand_is_what_protobuf_reads(
    request: pb.ProcessingRequest, cut: list[int], changed: list[tuple[int, int]], more: bytes
) -> None:
    damaged = bytearray(request.SerializeToString())
    for at, byte in changed:
        if -len(damaged) <= at < len(damaged):
            damaged[at] = byte
    whole = bytes(damaged) + more
    assert as_request(whole, cut) == by_protobuf(whole)


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("cut", [[], [16_379, 32_763], [LONG // 2]])
def test_a_long_body_is_read_without_protobuf(cut: list[int], end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"x" * LONG
    whole = request_body(body, end=end).SerializeToString()
    monkeypatch.setattr(messages, "_parse", None)
    for extra in (b"", b"B\x00"):  # Envoy says of most requests that they have no metadata
        message = read(parts_of(whole + extra, cut))
        assert isinstance(message, RequestBody)
        assert (b"".join(message.pieces), message.end_of_stream) == (body, end)


def test_metadata_with_a_long_body_is_read() -> None:
    request = with_subset(request_body(b"x" * LONG), ["10.0.0.1:1"])
    message = read(parts_of(request.SerializeToString(), [LONG // 2, -20]))
    assert isinstance(message, RequestBody)
    assert message.extra is not None
    assert message.extra.metadata_context == request.metadata_context


def test_two_bodies_in_one_message_are_left_to_protobuf() -> None:
    """The last field of a oneof counts, and both are of one."""
    whole = request_body(b"x" * LONG).SerializeToString() + request_body(b"y" * LONG).SerializeToString()
    assert as_request(whole, []) == by_protobuf(whole)
