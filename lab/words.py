"""Key-value questions in three scripts, and the tiny models' vocabulary.

The same questions as in the LAAR paper (section 3.1), with a word where the paper has a UUID: a model of a few hundred
kilobytes learns to look words up, not to spell them. Only the standard library: both virtual environments read this.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final

LANGUAGES: Final = ("en", "ja", "zh")
KEYS: Final = 288  # in each script: more than the longest prompt has pairs
VALUES: Final = 64  # in each script: guessing is right once in 64

BOS, EOS, UNKNOWN = "<s>", "</s>", "<unk>"
MIDDLE, NEXT, CLOSE = '": "', '", "', '"}\n\n'
OPENING: Final = {"en": 'JSON data: {"', "ja": 'JSON形式のデータ：{"', "zh": 'JSON格式的数据：{"'}
QUESTION: Final = {
    "en": ('Key: "', '". The value associated with the specified key is:'),
    "ja": ("キー：「", "」。指定されたキーに対応する値は次のとおりです："),
    "zh": ("键：“", "”。与指定的键相对应的值是："),
}

TOKENS_PER_PAIR: Final = 4
TOKENS_AROUND: Final = 5  # <s>, the opening, and the question; the last pair's comma is the closing bracket

_SEED_OF_WORDS: Final = 1
_LETTERS: Final = {
    "en": tuple("".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")),
    "ja": tuple("あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわ"),
    "zh": tuple("山川日月水火木金土天地人大小上下中東西南北春夏秋冬風雲雨雪花草石林田井門車馬牛羊鳥魚犬米竹玉衣弓矢"),
}


def words(language: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words that are keys and those that are values: two syllables, kana or characters each, never both."""
    all_words = ["".join(pair) for pair in product(_LETTERS[language], repeat=2)]
    chosen = Random(_SEED_OF_WORDS).sample(all_words, KEYS + VALUES)
    return tuple(chosen[:KEYS]), tuple(chosen[KEYS:])


def vocabulary() -> list[str]:
    """Every token, by its id."""
    phrases = [MIDDLE, NEXT, CLOSE, *(OPENING[language] for language in LANGUAGES)]
    phrases += [phrase for language in LANGUAGES for phrase in QUESTION[language]]
    both = [word for language in LANGUAGES for half in words(language) for word in half]
    return [UNKNOWN, BOS, EOS, *phrases, *both]


@dataclass(frozen=True, slots=True)
class Question:
    """One key of one dictionary; `pairs` is all that the prompt holds, in order."""

    language: str
    length_tokens: int  # nominal: the prompt is at most one pair shorter
    pairs: tuple[tuple[str, str], ...]
    key: str
    expected: str

    @property
    def prompt(self) -> str:
        inside = NEXT.join(f"{key}{MIDDLE}{value}" for key, value in self.pairs)
        return f"{OPENING[self.language]}{inside}{CLOSE}{asked(self.language, self.key)}"

    def is_right(self, answer: str) -> bool:
        return answer.strip() == self.expected


def asked(language: str, key: str) -> str:
    """The question alone, as it is put in a later turn about the same dictionary."""
    before, after = QUESTION[language]
    return f"{before}{key}{after}"


def pairs_in(length_tokens: int) -> int:
    """How many pairs a prompt of `length_tokens` holds. Raises ValueError where it holds none or there are no keys."""
    pairs = (length_tokens - TOKENS_AROUND) // TOKENS_PER_PAIR
    if not 0 < pairs <= KEYS:
        raise ValueError(f"a prompt of {length_tokens} tokens holds {pairs} pairs; 1 to {KEYS} can be made")
    return pairs


def question(rng: Random, language: str, length_tokens: int) -> Question:
    keys, values = words(language)
    pairs = tuple((key, rng.choice(values)) for key in rng.sample(keys, pairs_in(length_tokens)))
    key, expected = rng.choice(pairs)
    return Question(language, length_tokens, pairs, key, expected)
