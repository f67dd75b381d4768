"""The questions: what they ask, how long they are, and in which script the router takes them to be."""

from __future__ import annotations

from random import Random

import pytest

from fairlead.core import language
from lab import words


@pytest.mark.parametrize("script", words.LANGUAGES)
def test_the_router_tells_the_script_of_a_question(script: str) -> None:
    asked = words.question(Random(0), script, 256)
    assert language.detect(language.sample(asked.prompt)) == script


@pytest.mark.parametrize("length_tokens", [64, 512, 1024])
def test_a_prompt_is_at_most_a_pair_shorter_than_said(length_tokens: int) -> None:
    tokens = words.TOKENS_AROUND + words.TOKENS_PER_PAIR * words.pairs_in(length_tokens)
    assert length_tokens - words.TOKENS_PER_PAIR < tokens <= length_tokens


def test_a_prompt_longer_than_there_are_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="2048 tokens"):
        words.pairs_in(2048)


def test_the_answer_is_the_value_next_to_the_key_and_only_it_is_right() -> None:
    asked = words.question(Random(0), "ja", 128)
    assert dict(asked.pairs)[asked.key] == asked.expected
    assert asked.is_right(f" {asked.expected}")
    assert not asked.is_right(next(value for _, value in asked.pairs if value != asked.expected))


def test_no_word_is_a_key_and_a_value_or_of_two_scripts() -> None:
    tokens = words.vocabulary()
    assert len(tokens) == len(set(tokens))
