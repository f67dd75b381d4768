"""What no gateway says: messages twice, before others, and codes that HTTP does not have."""

from __future__ import annotations

import pytest

from fairlead.extproc.pb import ext_proc_pb2 as pb
from tests.extproc.world import Conversation, chat, request_body, request_headers, response_headers, response_trailers


def load_of(said: Conversation) -> int:
    return sum(endpoint.own.inflight_requests for endpoint in said.endpoints.values())


@pytest.mark.parametrize(
    "messages",
    [
        [request_headers("GET", "/", end=True)] * 3,
        [request_headers(), request_body(chat()), request_headers(), request_body(chat())],
        [request_body(chat()), request_headers("GET", "/", end=True)],
        [request_headers(mode=pb.FULL_DUPLEX_STREAMED), request_body(chat()), request_headers("GET", "/", end=True)],
    ],
)
def test_messages_out_of_order_leave_no_load(messages: list[pb.ProcessingRequest]) -> None:
    said = Conversation()
    said.say(*messages)
    assert load_of(said) == 0  # withdrawn, not overwritten
    said.stream.close()
    assert load_of(said) == 0


@pytest.mark.parametrize("code", ["9" * 5000, "1000", "20", "", "-20", "²⁰⁰", "2e2"])
def test_a_status_that_http_does_not_have_is_none(code: str) -> None:
    said = Conversation()
    answer = response_headers()
    answer.response_headers.headers.headers[0].raw_value = code.encode()
    said.say(request_headers(), request_body(chat()), answer, response_trailers())
    assert {code for _, _, _, code in said.services.recorder.requests} == {499}
    assert load_of(said) == 0
