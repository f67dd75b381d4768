"""Lists of retrieved documents: real ones, and made ones that overlap as much as those of the paper."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from fairlead.errors import UserError

BYTES_PER_TOKEN: Final = 4
SYNTHETIC: Final = "synthetic, k = 15"

_DOCUMENTS, _TOPICS, _OF_A_TOPIC, _LENGTH = 600, 60, 25, 15
_CHUNK_TOKENS: Final = 1024  # the paper's chunks
_AT_RANDOM: Final = 0.2  # of a list, from all documents instead of the topic's


class Turn(msgspec.Struct, frozen=True, array_like=True):
    conversation: int
    documents: tuple[int, ...]  # most relevant first


class Lists(msgspec.Struct, frozen=True):
    """Turns in the order in which they came, and the tokens of each document."""

    turns: list[Turn]
    tokens: Sequence[int]

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        return [turn.documents for turn in self.turns]

    def total_tokens(self) -> int:
        return sum(self.tokens[document] for context in self.contexts for document in context)


class _File(msgspec.Struct, frozen=True):
    bytes: list[int]
    lists: dict[str, list[Turn]]


def read_lists(path: Path) -> dict[str, Lists]:
    """Real lists. Raises UserError if the file cannot be read."""
    try:
        read = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=_File)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise UserError(
            f"--lists {path}: cannot be read ({error}); write the path of mtrag_retrieval.json.gz"
        ) from None
    tokens = [1 + length // BYTES_PER_TOKEN for length in read.bytes]
    return {name: Lists(turns, tokens) for name, turns in read.lists.items()}


def synthetic(count: int, seed: int, documents: int = _DOCUMENTS, topics: int = _TOPICS) -> Lists:
    """Lists of 15 documents: of a topic (Zipf), in random order, and some at random (Zipf).

    With 600 documents about four fifths of all uses are of the most used fifth, as in MultihopRAG (paper, figure 3).
    """
    rng = Random(seed)
    by_document = list(accumulate(1 / rank for rank in range(1, documents + 1)))
    by_topic = list(accumulate(1 / rank for rank in range(1, topics + 1)))

    def some() -> int:
        return rng.choices(range(documents), cum_weights=by_document)[0]

    def different(number: int) -> list[int]:
        chosen: dict[int, None] = {}
        while len(chosen) < number:
            chosen[some()] = None
        return list(chosen)

    pools = [different(_OF_A_TOPIC) for _ in range(topics)]
    turns = []
    for number in range(count):
        pool = list(rng.choices(pools, cum_weights=by_topic)[0])
        rng.shuffle(pool)
        chosen: dict[int, None] = {}
        while len(chosen) < _LENGTH:
            chosen[some() if rng.random() < _AT_RANDOM else pool.pop()] = None
        turns.append(Turn(number, tuple(chosen)))
    return Lists(turns, [_CHUNK_TOKENS] * documents)


def top_fifth(lists: Lists) -> float:
    """Share of all uses that fall on the most used fifth of the documents that are used."""
    uses = Counter(document for context in lists.contexts for document in context)
    fifth = uses.most_common(max(1, len(uses) // 5))
    return sum(count for _, count in fifth) / uses.total()
