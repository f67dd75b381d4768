"""Tokens read from answers of every API, in whatever pieces they come."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.usage import UNKNOWN, Usage, UsageForm, UsageReader

DETAILS = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
RESPONSES = {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}
SGLANG = {"prompt_tokens": 9, "completion_tokens": 3, "cached_tokens": 4}
OPENAI_FORM = Usage(9, 4, 3, "openai")
ANTHROPIC_FORM = Usage(9, 4, 3, "anthropic")


def read(*parts: bytes, events: bool = False) -> Usage:
    reader = UsageReader(events=events)
    for part in parts:
        reader.feed(part)
    reader.end()
    return reader.usage


@pytest.mark.parametrize(
    ("document", "form"),
    [
        ({"usage": DETAILS}, "openai"),
        ({"usage": RESPONSES}, "responses"),
        ({"response": {"usage": RESPONSES}}, "responses"),
        ({"meta_info": SGLANG}, "sglang"),
    ],
)
def test_a_json_answer_is_read_in_the_form_that_it_has(document: dict[str, object], form: UsageForm) -> None:
    assert read(json.dumps(document).encode()) == Usage(9, 4, 3, form)


def test_what_an_engine_does_not_say_is_unknown() -> None:
    assert read(b'{"usage":{"prompt_tokens":9,"completion_tokens":3}}') == Usage(9, None, 3, "openai")


def test_anthropics_events_are_put_together() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 4}}}
    delta = {"type": "message_delta", "usage": {"output_tokens": 3}}
    body = b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in (start, delta))
    assert read(body, events=True) == ANTHROPIC_FORM


def test_anthropics_input_tokens_are_those_that_no_cache_took_part_in() -> None:
    usage = {"input_tokens": 2, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3, "output_tokens": 3}
    assert read(json.dumps({"usage": usage}).encode()) == ANTHROPIC_FORM


def test_a_later_event_that_leaves_out_what_was_cached_does_not_shorten_the_prompt() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 4}}}
    delta = {"type": "message_delta", "usage": {"input_tokens": 5, "output_tokens": 3}}
    assert (
        read(*[b"data: " + json.dumps(event).encode() + b"\n\n" for event in (start, delta)], events=True)
        == ANTHROPIC_FORM
    )


EVENTS = b'data: {"choices":[{"delta":{"content":"usage \\"usage\\""}}]}\n\n' + (
    b"data: " + json.dumps({"choices": [], "usage": DETAILS}).encode() + b"\n\ndata: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(EVENTS)), max_size=12))
def test_events_may_be_cut_at_any_byte(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(EVENTS)]
    assert read(*(EVENTS[a:b] for a, b in itertools.pairwise(places)), events=True) == OPENAI_FORM


@given(st.lists(st.binary(max_size=50), max_size=5), st.booleans())
def test_garbage_teaches_nothing_and_raises_nothing(parts: list[bytes], events: bool) -> None:
    assert read(*parts, events=events) == UNKNOWN


@pytest.mark.parametrize(
    "usage",
    [
        3,
        [],
        {"prompt_tokens": -1},
        {"prompt_tokens": "9"},
        {"prompt_tokens": True},
        {"prompt_tokens": 10**9},
        {"completion_tokens": 10**400},
    ],
)
def test_odd_usage_is_unknown(usage: object) -> None:
    assert read(json.dumps({"usage": usage}).encode()) == UNKNOWN


def test_an_answer_too_long_to_keep_is_not_read() -> None:
    assert read(b'{"usage":{"prompt_tokens":9},"x":"', b"x" * (1 << 20), b'"}') == UNKNOWN
