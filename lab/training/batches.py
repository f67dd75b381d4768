"""Batches of token ids: dictionaries, each followed by questions about it and their answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab import words

Ids = NDArray[np.int64]
_TOKENS_PER_QUESTION = 5  # with the answer and </s>
_FIRST_VALUE = 4  # after <s>, the opening, the first key and the middle


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of tokens of one length. Places are columns, the same in every row but for `sought`."""

    tokens: Ids
    values: Ids  # columns of the dictionary's values, two after their keys
    questions: Ids  # columns where questions end, one after their keys: the next token is the answer
    sought: Ids  # by row and question: the column of the value asked for


class Batches:
    """Makes batches of equal shape; the generator's seed decides everything."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        number = {token: index for index, token in enumerate(words.vocabulary())}
        self._bos, self._eos = number[words.BOS], number[words.EOS]
        self._middle, self._next, self._close = number[words.MIDDLE], number[words.NEXT], number[words.CLOSE]
        self._opening = np.array([number[words.OPENING[language]] for language in words.LANGUAGES])
        self._question = np.array([[number[p] for p in words.QUESTION[language]] for language in words.LANGUAGES])
        self._keys = np.array([[number[w] for w in words.words(language)[0]] for language in words.LANGUAGES])
        self._values = np.array([[number[w] for w in words.words(language)[1]] for language in words.LANGUAGES])

    def make(self, rows: int, pairs: int, questions: int, mix: tuple[float, ...]) -> Batch:
        """`mix` is the share of each of the languages."""
        rng = self._rng
        language = rng.choice(len(words.LANGUAGES), size=rows, p=mix)
        place = rng.random((rows, words.KEYS)).argsort(axis=1)[:, :pairs]
        keys = np.take_along_axis(self._keys[language], place, axis=1)
        values = np.take_along_axis(self._values[language], rng.integers(words.VALUES, size=(rows, pairs)), axis=1)
        dictionary = np.empty((rows, pairs, words.TOKENS_PER_PAIR), dtype=np.int64)
        dictionary[:, :, 0], dictionary[:, :, 1], dictionary[:, :, 2] = keys, self._middle, values
        dictionary[:, :, 3] = self._next
        dictionary[:, -1, 3] = self._close
        asked = rng.integers(pairs, size=(rows, questions))
        turns = np.empty((rows, questions, _TOKENS_PER_QUESTION), dtype=np.int64)
        turns[:, :, 0] = self._question[language, 0][:, None]
        turns[:, :, 1] = np.take_along_axis(keys, asked, axis=1)
        turns[:, :, 2] = self._question[language, 1][:, None]
        turns[:, :, 3] = np.take_along_axis(values, asked, axis=1)
        turns[:, :, 4] = self._eos
        start = np.stack([np.full(rows, self._bos), self._opening[language]], axis=1)
        tokens = np.concatenate([start, dictionary.reshape(rows, -1), turns.reshape(rows, -1)], axis=1)
        values_at = _FIRST_VALUE + words.TOKENS_PER_PAIR * np.arange(pairs)
        first_end = 2 + pairs * words.TOKENS_PER_PAIR + 2
        return Batch(tokens, values_at, first_end + _TOKENS_PER_QUESTION * np.arange(questions), values_at[asked])
