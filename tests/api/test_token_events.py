"""Which events of a stream bring tokens of the answer."""

from __future__ import annotations

import pytest

from fairlead.api.token_events import TokenEvents

CHUNK = b'data: {"choices":[{"delta":{"content":"data: a"}}]}\n\n'


def test_each_event_of_a_chat_brings_tokens_and_comments_do_not() -> None:
    events = TokenEvents()
    assert [events.in_part(part) for part in (b": keep-alive\n\n", CHUNK, CHUNK * 3)] == [0, 1, 3]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_of_named_events_only_deltas_bring_tokens(line_end: bytes) -> None:
    events = TokenEvents()
    created = b'event: response.created\ndata: {"type":"response.created","response":{"text":"delta"}}\n\n'
    delta = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
    parts = [each.replace(b"\n", line_end) for each in (created, created + delta, delta * 2)]
    assert [events.in_part(part) for part in parts] == [0, 1, 2]


def test_an_event_that_is_cut_after_its_name_counts_once() -> None:
    events = TokenEvents()
    assert [events.in_part(b"event: content_block_delta\n"), events.in_part(b'data: {"delta":{}}\n\n')] == [1, 0]
