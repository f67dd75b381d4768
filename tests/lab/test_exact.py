"""The exact-match judge of the lab's cascade reads the questions that the lab asks."""

from __future__ import annotations

from random import Random

from lab import words
from lab.exact import score
from lab.pool import body_of


def test_only_the_value_of_the_key_that_is_asked_for_is_right() -> None:
    rng = Random(1)
    for language in words.LANGUAGES:
        for length_tokens in (64, 512):
            question = words.question(rng, language, length_tokens)
            request = body_of(question, "cascade")
            assert score(request, f" {question.expected}\n")
            assert not score(request, "")
            assert not score(request, question.key)
