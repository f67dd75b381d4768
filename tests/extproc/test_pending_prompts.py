"""How long a prompt counts as waiting at its engine: what the answer's headers and its first part show of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.extproc.world import (
    Clock,
    Conversation,
    chat,
    make_services,
    request_body,
    request_headers,
    response_body,
    response_headers,
    streamed_headers,
)

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LONG_AFTER_S = 500.0  # any of these prompts was due


class Asked(Conversation):
    """A client's request at a sidecar which observes so many messages a second."""

    def __init__(self, *, streams: bool, messages_per_second: float = 100.0) -> None:
        self.clock = Clock()
        super().__init__(replace(make_services(messages_per_second=messages_per_second), clock_s=self.clock))
        self.say(request_headers(), request_body(chat(stream=streams)))

    def waits(self) -> bool:
        """Whether its prompt counts as not computed."""
        endpoints = self.services.router.pool.endpoints
        for endpoint in endpoints:
            endpoint.prefills.settle(self.clock.now_s)
        return any(endpoint.load.pending_prefill_tokens for endpoint in endpoints)


def test_a_stream_s_prompt_waits_until_its_headers_are_there() -> None:
    asked = Asked(streams=True, messages_per_second=0.0)
    asked.clock.now_s = LONG_AFTER_S
    assert asked.waits()
    asked.say(streamed_headers())
    assert not asked.waits()


def test_an_observed_stream_s_prompt_waits_until_its_first_token_is_there() -> None:
    asked = Asked(streams=True)
    asked.say(streamed_headers())
    asked.clock.now_s = LONG_AFTER_S
    assert asked.waits()
    asked.say(response_body(b": keep-alive\n\n"))
    assert asked.waits()
    asked.say(response_body(TOKEN))
    assert not asked.waits()


def test_the_prompt_of_an_answer_in_one_piece_waits_until_it_is_due() -> None:
    asked = Asked(streams=False)
    assert asked.waits()
    asked.clock.now_s = LONG_AFTER_S
    assert not asked.waits()
    asked.say(response_headers())
    assert not asked.waits()


def test_the_prompt_of_an_observed_stream_that_shows_no_tokens_is_estimated() -> None:
    """As one that something behind the gateway compresses."""
    asked = Asked(streams=True)
    asked.say(streamed_headers())
    asked.clock.now_s = LONG_AFTER_S
    for _ in range(63):
        asked.say(response_body(b"\x1f\x8b\x08"))
    assert asked.waits()
    asked.say(response_body(b"\x1f\x8b\x08"))
    assert not asked.waits()


@pytest.mark.parametrize("has_headers", [False, True])
def test_a_client_that_leaves_takes_its_prompt_along(has_headers: bool) -> None:
    asked = Asked(streams=True)
    if has_headers:
        asked.say(streamed_headers())
    assert asked.waits()
    asked.stream.close()
    assert not asked.waits()
