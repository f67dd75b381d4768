"""Answers as a cascade reads and writes them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.api.answers import Answer, as_events, read_answer, with_usage_of_all


def answer(text: str = "hi", prompt_tokens: int = 3, completion_tokens: int = 2, **message: Any) -> Answer:
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    read = read_answer(msgspec.json.encode({"id": "x", "model": "m", "choices": [choice], "usage": usage}))
    assert read is not None
    return read


def events(body: bytes) -> list[dict[str, Any]]:
    assert body.endswith(b"data: [DONE]\n\n")
    return [msgspec.json.decode(line.removeprefix(b"data: ")) for line in body.split(b"\n\n")[:-2]]


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[5]}', b"[" * 5000])
def test_what_is_no_answer_is_not_read(body: bytes) -> None:
    assert read_answer(body) is None


def test_usage_counts_every_answer_and_nothing_else_changes() -> None:
    summed = with_usage_of_all(answer("large"), [answer("small", 3, 5), answer("medium", 3, 7)])
    assert summed.document["usage"] == {"prompt_tokens": 9, "completion_tokens": 14, "total_tokens": 23}
    assert msgspec.json.decode(summed.body) == summed.document
    assert summed.document | {"usage": None} == answer("large").document | {"usage": None}
    assert with_usage_of_all(answer(), []) == answer()


def test_an_answer_without_usage_stays_without() -> None:
    bare = read_answer(b'{"choices":[{"message":{"content":"hi"}}]}')
    assert bare is not None
    assert with_usage_of_all(bare, [answer()]).body == bare.body


def test_an_answer_as_a_stream_says_the_same() -> None:
    said, ended = events(as_events(answer("two words"), with_usage=False))
    assert said["choices"][0]["delta"] == {"role": "assistant", "content": "two words"}
    assert (said["object"], said["choices"][0]["finish_reason"]) == ("chat.completion.chunk", None)
    assert (ended["choices"][0]["delta"], ended["choices"][0]["finish_reason"]) == ({}, "stop")
    assert events(as_events(answer(), with_usage=True))[-1]["usage"]["total_tokens"] == 5


def test_tool_calls_of_a_stream_are_numbered() -> None:
    called = answer("", tool_calls=[{"id": "a", "function": {"name": "f"}}, {"id": "b", "function": {"name": "g"}}])
    assert called.has_tool_calls
    delta = events(as_events(called, with_usage=False))[0]["choices"][0]["delta"]
    assert [call["index"] for call in delta["tool_calls"]] == [0, 1]


def test_a_completion_streams_its_text() -> None:
    read = read_answer(b'{"id":"c","choices":[{"index":0,"text":"hello","finish_reason":"length"}]}')
    assert read is not None
    said, ended = events(as_events(read, with_usage=False))
    assert (said["object"], said["choices"][0]["text"]) == ("text_completion", "hello")
    assert ended["choices"][0]["finish_reason"] == "length"
