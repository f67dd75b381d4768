"""Key-value questions in English, Japanese and Chinese, as in the LAAR paper (section 3.1): the demo's traffic.

Each prompt hides pairs of UUIDs and asks, in its last line, for the value of one key, so that anyone can tell a right
answer from a wrong one. The paper's kind ("kv") is a JSON dictionary; "passage" hides its pairs in prose.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random
from typing import Any, Final, Literal
from uuid import UUID

from fairlead.core.lengths import estimate_tokens

LANGUAGES: Final = ("en", "ja", "zh")

Kind = Literal["kv", "passage"]
KINDS: Final[tuple[Kind, ...]] = ("kv", "passage")

_OPENING: Final = {"en": "JSON data: ", "ja": "JSON形式のデータ：", "zh": "JSON格式的数据："}
_NOTE: Final = {
    "en": "The record says {key}: {value}.",
    "ja": "記録によれば{key}：{value}である。",
    "zh": "记录写着{key}：{value}。",
}
_QUESTION: Final = {
    "en": 'Key: "{key}". The value associated with the specified key is:',
    "ja": "キー：「{key}」。指定されたキーに対応する値は次のとおりです：",
    "zh": "键：“{key}”。与指定的键相对应的值是：",
}
_NOTES_IN_A_PASSAGE: Final = 8
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_TOKENS_PER_PAIR: Final = 40  # a first guess, for the size to start from
_CHARACTERS_PER_TOKEN: Final = 2
_NEAR: Final = 0.92
_LARGER_TRIED: Final = 30


@dataclass(frozen=True, slots=True)
class Question:
    prompt: str
    key: str
    expected: str
    language: str
    length_tokens: int  # nominal: the prompt's estimate is at most a tenth below it, and not above
    kind: Kind

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.prompt}]


def questions(seed: int, languages: Sequence[str], lengths_tokens: Sequence[int], count: int) -> list[Question]:
    """`count` questions, evenly over kinds, languages and lengths, in an order that `seed` shuffles."""
    rng = Random(seed)
    shapes = list(itertools.product(KINDS, languages, lengths_tokens))
    found: list[Question] = []
    while len(found) < count:
        rng.shuffle(shapes)
        found += [_question(rng, *shape) for shape in shapes[: count - len(found)]]
    return found


def is_correct(answer: str, question: Question) -> bool:
    """The expected value is in the answer, with no other UUID except the key."""
    named = {match.lower() for match in _UUID.findall(answer)}
    return question.expected in named and named <= {question.expected, question.key}


def _question(rng: Random, kind: Kind, language: str, length_tokens: int) -> Question:
    if kind == "kv":
        prompt, key, expected = _dictionary(rng, language, length_tokens)
    else:
        prompt, key, expected = _passage(rng, language, length_tokens)
    return Question(prompt, key, expected, language, length_tokens, kind)


def _dictionary(rng: Random, language: str, length_tokens: int) -> tuple[str, str, str]:
    pairs: list[tuple[str, str]] = []
    place = rng.random()

    def asked(count: int) -> tuple[str, str]:
        pairs.extend((_uuid(rng), _uuid(rng)) for _ in range(count - len(pairs)))
        return pairs[int(place * count)]

    def build(count: int) -> str:
        key, _ = asked(count)
        data = ", ".join(f'"{name}": "{value}"' for name, value in pairs[:count])
        return f"{_OPENING[language]}{{{data}}}\n\n{_QUESTION[language].format(key=key)}"

    count = _largest(build, length_tokens // _TOKENS_PER_PAIR, length_tokens)
    return build(count), *asked(count)


def _passage(rng: Random, language: str, length_tokens: int) -> tuple[str, str, str]:
    text = _text(language)
    start = rng.randrange(len(text))
    notes = [(rng.random(), _uuid(rng), _uuid(rng)) for _ in range(_NOTES_IN_A_PASSAGE)]
    _, key, expected = rng.choice(notes)

    def build(characters: int) -> str:
        rotated = text * ((start + characters) // len(text) + 1)
        paragraphs = rotated[start : start + characters].split("\n\n")
        for place, name, value in notes:
            paragraphs.insert(1 + int(place * len(paragraphs)), _NOTE[language].format(key=name, value=value))
        return "\n\n".join([*paragraphs, _QUESTION[language].format(key=key)])

    characters = _largest(build, length_tokens * _CHARACTERS_PER_TOKEN, length_tokens)
    return build(characters), key, expected


def _largest(build: Callable[[int], str], size: int, length_tokens: int) -> int:
    """A size whose prompt is close to `length_tokens` and not above. The estimate samples, so it is a little rough."""

    def tokens(size: int) -> int:
        return estimate_tokens(build(size).encode())

    for _ in range(3):
        size = max(1, int(size * length_tokens / tokens(size)))
    while size > 1 and tokens(size) > length_tokens:
        size -= max(1, size // 200)
    # Where one size more is a jump of the estimate, a larger one may be nearer.
    if tokens(size) < _NEAR * length_tokens:
        larger = [size + step * max(1, size // 200) for step in range(_LARGER_TRIED)]
        size = max(larger, key=lambda each: (tokens(each) <= length_tokens, tokens(each)))
    return size


def _uuid(rng: Random) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))


@cache
def _text(language: str) -> str:
    text = resources.files("fairlead.tools.demo").joinpath("texts", f"{language}.txt").read_text(encoding="utf-8")
    return text.rstrip("\n") + "\n\n"
