"""Answers of a simulated engine: the value of a key-value question, right or wrong, or filler.

The questions are those of the LAAR paper (section 3.1), as JSON or hidden in prose: the prompt contains pairs of UUIDs
anywhere, and its last UUID is the key asked for. How often an engine is right is the model's capability by language and
length. A wrong answer is some other value from the prompt, as a real model would give.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

import xxhash

from fairlead.core.capability import Capability
from fairlead.core.language import detect, sample
from fairlead.core.lengths import bucket_of
from fairlead.tools.simulate.tokens import split

_UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_QUOTE = "[\"'`\u2018\u2019\u201c\u201d\u300c\u300d\u300e\u300f]?"
_PAIR: Final = re.compile(rf"({_UUID})(?:{_QUOTE}\s*(?::|=|\u2192|\uff1a)\s*{_QUOTE}({_UUID}))?")

_FILLER: Final = ("the", "light", "on", "the", "cape", "turns", "once", "more")
FILLER_TOKENS: Final = 64  # if the request sets no limit


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    key: str
    value: str
    other_values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    tokens: tuple[str, ...]  # joined, they are the text
    cut: bool  # the limit ended it (OpenAI's finish reason "length"), not the model


def find_question(prompt: str) -> KeyQuestion | None:
    """The last UUID of `prompt`, if it is the key of a pair. If a key occurs twice, its last value counts."""
    values: dict[str, str] = {}
    asked = ""
    for match in _PAIR.finditer(prompt):
        key, value = match.groups()
        asked = key
        if value:
            values[key] = asked = value
    if asked not in values:
        return None
    right = values[asked]
    return KeyQuestion(asked, right, tuple(value for value in values.values() if value != right))


class Answerer:
    """One model with one capability. With temperature 0 the same prompt always gets the same answer."""

    def __init__(self, model: str, capability: Capability, seed: int) -> None:
        self._model = model
        self._capability = capability
        self._random = Random(seed)

    def answer(
        self,
        prompt: str,
        user_text: str,
        *,
        prompt_tokens: int,
        max_tokens: int | None,
        temperature: float,
        ignore_eos: bool = False,
    ) -> EngineAnswer:
        """`user_text`, the user's last message, determines the language; `max_tokens` bounds the answer."""
        question = find_question(prompt)
        if question is None:
            limit = FILLER_TOKENS if max_tokens is None else max_tokens
            return EngineAnswer(tuple(itertools.islice(_filler(), limit)), cut=max_tokens is not None)
        language, bucket = detect(sample(user_text)), bucket_of(prompt_tokens)
        probability = self._capability.success_probability(language, bucket, prompt_tokens)
        draw = self._random if temperature > 0 else self._settled(question.key, prompt)
        right = draw.random() < probability or not question.other_values
        text = question.value if right else draw.choice(question.other_values)
        tokens = tuple(token for tokens in split(text) for token in tokens)
        if max_tokens is None or (len(tokens) <= max_tokens and not ignore_eos):
            return EngineAnswer(tokens, cut=False)
        return EngineAnswer((*tokens, *itertools.islice(_filler(), max_tokens))[:max_tokens], cut=True)

    def _settled(self, key: str, prompt: str) -> Random:
        """A draw that depends only on model and question: asking again does not help, another model may."""
        prompt_hash = xxhash.xxh3_64_intdigest(prompt.encode("utf-8", "surrogatepass"))
        return Random(f"{self._model}\n{key}\n{prompt_hash}")


def _filler() -> Iterator[str]:
    """Words that are one token each."""
    return (word if index == 0 else f" {word}" for index, word in enumerate(itertools.cycle(_FILLER)))
