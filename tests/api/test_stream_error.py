"""A stream whose first part is an error: which status it should have had."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.stream_error import stream_error

SGLANG = (
    b'data: {"error": {"object": "error", "message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", '
    b'"param": null, "code": 503}}\n\ndata: [DONE]\n\n'
)
ANTHROPIC = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"full"}}\n\n'


@pytest.mark.parametrize(
    ("part", "status"),
    [
        (SGLANG, 503),
        (SGLANG.replace(b"\n", b"\r\n"), 503),
        (ANTHROPIC, 503),
        (b'event: message_start\ndata: {"type":"message_start"}\n\n' + ANTHROPIC, 503),
        (b'data: {"error":{"code":400,"message":"too long"}}\n\n', 400),
        (b'data: {"error":"failed"}\n\n', 500),
        (b'data: {"error":{"code":"server_error"}}\n\n', 500),
        (b'data: {"choices":[{"delta":{"content":"an \\"error\\""}}]}\n\n', None),
        (b'data: {"choices":[],"error":null}\n\n', None),
        (b'data: {"error', None),
        (b'data: ["error"]\n\n', None),
        (b"", None),
    ],
)
def test_a_refusal_is_told_from_an_answer(part: bytes, status: int | None) -> None:
    error = stream_error(part)
    assert (error and error.status) == status


@given(st.binary(max_size=200).map(lambda rest: b'data: {"error":' + rest))
def test_whatever_comes_it_is_a_status_of_an_error_or_none(part: bytes) -> None:
    error = stream_error(part)
    assert error is None or (400 <= error.status < 600 and part.count(error.body))


def test_the_body_of_a_refusal_is_the_engine_s_own() -> None:
    error = stream_error(SGLANG)
    assert error is not None
    assert json.loads(error.body)["error"]["message"] == "The request queue is full."
