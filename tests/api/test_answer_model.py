"""The client's own name in the answer of an engine that was asked for another model."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.answer_model import AnswerModel

ANSWER = b'{"id": "x", "model": "v2", "choices": [{"message": {"content": "\\"model\\":\\"v2\\""}}]}'
EVENTS = (
    b'event: message_start\ndata: {"type":"message_start","message":{"model":"v2","usage":{}}}\n\n'
    b'data: {"type":"response.created","response":{"id":"r","model":"v2"}}\r\n\r\n'
    b'data: {"id":"x","model":"v2","choices":[{"delta":{"content":"\\"model\\":\\"v2\\""}}]}\n\n'
    b': a comment with "model":"v2"\n\ndata: [DONE]\n\n'
)


def fed(body: bytes, cuts: list[int], *, events: bool, has_ended: bool = True) -> bytes:
    answer = AnswerModel("chat", events=events, length=len(body))
    bounds = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    parts = [body[start:end] for start, end in pairwise(bounds)]
    return b"".join(
        answer.feed(part, has_ended=has_ended and number == len(parts) - 1) for number, part in enumerate(parts)
    )


@given(st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_only_the_model_changes_however_the_body_is_cut(cuts: list[int], has_ended: bool) -> None:
    wanted = ANSWER.replace(b'"model": "v2"', b'"model": "chat"')
    assert fed(ANSWER, cuts, events=False, has_ended=has_ended) == wanted
    lines = [
        line.replace(b'"model":"v2"', b'"model":"chat"', 1) if line.startswith(b"data: {") else line
        for line in EVENTS.split(b"\n")
    ]
    assert fed(EVENTS, cuts, events=True, has_ended=has_ended) == b"\n".join(lines)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5), st.booleans())
def test_what_is_no_answer_passes_as_it_is(body: bytes, cuts: list[int], events: bool) -> None:
    assert fed(body, cuts, events=events) == body


def test_a_line_that_is_too_long_passes_and_the_next_is_read_again() -> None:
    long = b'data: {"x":"' + b"a" * (1 << 17) + b'","model":"v2"}\n\n'
    after = b'data: {"model":"v2"}\n\n'
    cuts = list(range(0, len(long), 8192))
    assert fed(long + after, cuts, events=True) == long + b'data: {"model":"chat"}\n\n'


def test_a_name_is_written_as_json() -> None:
    answer = AnswerModel('a"b', events=False, length=len(ANSWER))
    assert json.loads(answer.feed(ANSWER, has_ended=True))["model"] == 'a"b'
