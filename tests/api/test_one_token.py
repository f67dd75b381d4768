"""The request of one token that another engine computes a prompt for: the same prompt, whatever else is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.edits import with_values
from fairlead.api.one_token import of_one_token, spans_to_split
from fairlead.api.spans import object_spans

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def asked(**body: Any) -> dict[str, Any]:
    written = json.dumps(body).encode()
    spans = spans_to_split(written)
    assert spans is not None
    return dict(json.loads(of_one_token(written, spans, b'{"do_remote_decode":true}')))


def test_it_asks_for_one_token_in_one_piece_that_ends_by_its_length() -> None:
    sent = asked(
        model="m", messages=[], max_tokens=500, max_completion_tokens=400, stream=True, min_tokens=8,
        stream_options={"include_usage": True}, stop=["x"], temperature=0.5,
    )  # fmt: skip
    assert sent == {
        "model": "m", "messages": [], "max_tokens": 1, "max_completion_tokens": 1, "stream": False, "min_tokens": 0,
        "stream_options": None, "stop": None, "temperature": 0.5, "ignore_eos": True,
        "kv_transfer_params": {"do_remote_decode": True},
    }  # fmt: skip


def test_the_least_body_becomes_a_whole_one() -> None:
    assert asked() == {
        "max_tokens": 1,
        "stream": False,
        "ignore_eos": True,
        "kv_transfer_params": {"do_remote_decode": True},
    }


@pytest.mark.parametrize("body", [{"n": 1}, {"prompt": [1, 2]}, {"prompt": "a"}, {"echo": False}, {"best_of": None}])
def test_these_can_be_split(body: dict[str, Any]) -> None:
    assert spans_to_split(json.dumps(body).encode()) is not None


@pytest.mark.parametrize(
    "body",
    [
        b'{"n":2}',
        b'{"prompt":["a","b"]}',
        b'{"prompt":[ [1], [2] ]}',
        b'{"prompt":[]}',
        b'{"echo":true}',
        b'{"n":1,"n":2}',
    ],
)
def test_these_cannot(body: bytes) -> None:
    assert spans_to_split(body) is None


@given(st.dictionaries(st.text(), JSON, max_size=5), st.dictionaries(st.sampled_from("abc"), JSON, max_size=3))
def test_values_are_replaced_or_added_and_nothing_else_changes(body: dict[str, Any], values: dict[str, Any]) -> None:
    written = json.dumps(body, indent=1).encode()
    spans = object_spans(written)
    assert spans is not None
    changed = with_values(written, spans, {key: json.dumps(value).encode() for key, value in values.items()})
    assert json.loads(changed) == body | values
