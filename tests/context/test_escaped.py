"""Texts changed inside JSON strings, whatever way their clients escape."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.context.escaped import Escaped, applied

TEXTS = st.text(st.sampled_from('ab<>"\\/\n\t\x01é日𝄞'), max_size=30) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=30
)


def go_style(text: str) -> str:
    """As Go's encoder writes: markup escaped too."""
    written = json.dumps(text, ensure_ascii=False)
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written


ENCODERS = [json.dumps, lambda text: json.dumps(text, ensure_ascii=False), go_style]


@settings(deadline=None)
@given(TEXTS, st.data(), st.sampled_from(ENCODERS))
def test_slices_put_together_again_are_the_text_cut_there(text: str, data: st.DataObject, encode: object) -> None:
    assert callable(encode)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    places = [0, *[len(text[:cut].encode()) for cut in cuts], len(text.encode())]
    pieces = data.draw(st.permutations(list(pairwise(places))))
    raw = encode(text).encode()
    escaped = Escaped(raw)
    assert escaped.text.decode() == text
    written = applied(raw, escaped.written([*pieces, b'new "text"']))
    assert json.loads(written).encode() == applied(escaped.text, [*pieces, b'new "text"'])


@settings(deadline=None)
@given(TEXTS, st.sampled_from(ENCODERS))
def test_the_whole_text_is_written_as_its_client_wrote_it(text: str, encode: object) -> None:
    assert callable(encode)
    raw = encode(text).encode()
    escaped = Escaped(raw)
    assert applied(raw, escaped.written([(0, len(escaped.text))])) == raw


@pytest.mark.parametrize("raw", [rb'"\ud800"', b'"\xff"'])
def test_what_is_no_text_is_not_read(raw: bytes) -> None:
    assert Escaped.read(raw) is None
