"""A long body stays in the pieces that it came in, and changes as one that is whole would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.spans import spliced
from fairlead.extproc import replies
from fairlead.extproc.body import Body, LongBody, body_of, spliced_body, whole
from fairlead.extproc.pb.ext_proc_pb2 import ProcessingResponse, StreamedBodyResponse

pieces: st.SearchStrategy[list[bytes | memoryview]] = st.lists(
    st.binary(max_size=40) | st.builds(lambda data: memoryview(data), st.binary(max_size=40)), max_size=6
)


@given(pieces, st.lists(st.integers(0, 300), max_size=8, unique=True), st.binary(max_size=20))
def test_a_body_in_pieces_changes_as_one_that_is_whole(
    given: list[bytes | memoryview], places: list[int], new: bytes
) -> None:
    text = b"".join(given)
    edges = sorted(place for place in places if place <= len(text))
    changes = [(start, end, new) for start, end in zip(edges[::2], edges[1::2], strict=False)]
    changed = spliced_body(body_of(given, most_bytes=-1), changes)
    assert isinstance(changed, LongBody)
    assert whole(changed) == spliced(text, changes)
    assert len(changed) == len(whole(changed))


def test_what_does_not_change_of_a_long_body_is_not_copied() -> None:
    first, last = b"x" * 1000, b"y" * 1000
    changed = spliced_body(body_of((first, b"model", last), most_bytes=0), [(1000, 1005, b"other")])
    assert isinstance(changed, LongBody)
    assert changed.pieces[0] is first
    assert changed.pieces[-1] is last


def test_a_short_body_is_in_one_piece() -> None:
    assert body_of((b"a", memoryview(b"b")), most_bytes=2) == b"ab"


@given(pieces)
def test_a_body_in_pieces_is_streamed_whole_and_ends_once(given: list[bytes | memoryview]) -> None:
    text = b"".join(given)
    for body in (text, body_of(given, most_bytes=-1)):
        sent = _streamed(body)
        assert b"".join(each.body for each in sent) == text
        assert [each.end_of_stream for each in sent] == [False] * (len(sent) - 1) + [True]


def test_a_streamed_chunk_is_never_longer_than_envoy_takes() -> None:
    body = body_of((b"x" * (replies.CHUNK_BYTES * 2 + 1), b"y" * 10), most_bytes=0)
    assert max(len(each.body) for each in _streamed(body)) == replies.CHUNK_BYTES


def _streamed(body: Body) -> list[StreamedBodyResponse]:
    sent = map(replies.whole, replies.streamed_request_body(body, end_of_stream=True))
    made = [ProcessingResponse.FromString(each) for each in sent]
    return [each.request_body.response.body_mutation.streamed_response for each in made]
