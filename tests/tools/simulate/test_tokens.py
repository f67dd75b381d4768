"""The tokenizer: plausible counts, and hashes that chain."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tools.simulate.tokens import from_ids, split, tokenize

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)  # lone surrogates too
PROSE = "The harbour lay quiet under the evening fog, and only the bell of the outer buoy could be heard. " * 20


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        (PROSE, 3.8, 5.0),
        (", ".join(str(UUID(int=7919**9 * number % 2**128, version=4)) for number in range(1, 50)), 1.7, 2.3),
        ("ある日の暮方の事である。一人の下人が、羅生門の下で雨やみを待っていた。" * 9, 1.0, 1.5),
        ("广州的天气很热，我们明天去海边散步，然后一起吃晚饭。" * 9, 1.0, 1.6),
    ],
    ids=["English", "UUIDs", "Japanese", "Chinese"],
)
def test_characters_per_token_are_those_of_real_tokenizers(text: str, least: float, most: float) -> None:
    assert least <= len(text) / tokenize(text, 16, len(text)).count <= most


@given(ANY_TEXT)
def test_tokens_are_the_text_cut_into_pieces(text: str) -> None:
    assert "".join(token for tokens in split(text) for token in tokens) == text


@given(ANY_TEXT, ANY_TEXT)
def test_texts_share_the_hashes_of_their_common_prefix_and_no_other(first: str, second: str) -> None:
    one, two = tokenize(first, 4, 1000), tokenize(first + second, 4, 2000)
    common = [a == b for a, b in zip(one.ids, two.ids, strict=False)]
    same = common.index(False) if False in common else len(common)
    for index, (a, b) in enumerate(zip(one.block_hashes, two.block_hashes, strict=False)):
        assert (a == b) == ((index + 1) * 4 <= same)


@given(ANY_TEXT)
def test_a_prompt_sent_as_its_ids_has_the_same_blocks_as_its_text(text: str) -> None:
    tokens = tokenize(text, 4, 1000)
    assert from_ids(tokens.ids, 4) == tokens


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), max_size=40))
def test_hashes_of_an_answer_go_on_from_those_of_the_prompt(prompt: list[int], answer: list[int]) -> None:
    assert from_ids(prompt, 4).followed_by(answer) == from_ids(prompt + answer, 4)


def test_a_text_far_beyond_the_limit_is_not_read_to_its_end() -> None:
    assert 1000 < tokenize("a b " * 1_000_000, 16, 1000).count < 100_000
