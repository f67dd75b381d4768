"""Values of JSON found and replaced in its bytes."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.spans import list_spans, object_spans, replace_at

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), VALUES, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_each_value_of_an_object_is_where_its_span_says(
    fields: dict[str, object], ascii: bool, indent: int | None
) -> None:
    text = json.dumps(fields, ensure_ascii=ascii, indent=indent).encode()
    spans = object_spans(text)
    assert spans is not None
    assert {key: json.loads(text[slice(*span)]) for key, span in spans.items()} == fields


@settings(deadline=None)
@given(st.lists(VALUES, max_size=5), st.sampled_from([None, 1]))
def test_each_item_of_a_list_is_where_its_span_says(items: list[object], indent: int | None) -> None:
    text = json.dumps(items, indent=indent).encode()
    spans = list_spans(text)
    assert spans is not None
    assert [json.loads(text[slice(*span)]) for span in spans] == items


def test_a_replaced_value_leaves_every_other_byte() -> None:
    text = b'{ "a" : [1, {"t":"x"} ,1.0e400],\n"b":12345678901234567890}'
    assert replace_at(text, {("a", 1, "t"): b'"yy"'}) == text.replace(b'"x"', b'"yy"')


def test_several_values_are_replaced_at_once() -> None:
    text = b'{"a": [10, 20, 30], "b": {"c": 1}}'
    assert replace_at(text, {("a", 2): b"3", ("a", 0): b"1", ("b", "c"): b"{}"}) == b'{"a": [1, 20, 3], "b": {"c": {}}}'


def test_a_key_written_twice_a_missing_place_or_no_json_gives_none() -> None:
    assert replace_at(b'{"a": 1, "a": 2}', {("a",): b"3"}) is None
    assert replace_at(b'{"a": 1}', {("b",): b"3"}) is None
    assert replace_at(b"[1]", {(1,): b"3"}) is None
    assert replace_at(b"{", {("a",): b"3"}) is None
