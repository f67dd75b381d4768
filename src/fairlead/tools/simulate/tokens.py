"""A tokenizer for simulated engines: cheap, deterministic, and with token counts like those of open models.

It has no vocabulary: a token's id is a hash of its characters, so equal text gives equal ids, and only ids of tokens
that this process has met can be turned back into text. Blocks are hashed over ids, so a prompt sent as text and the
same prompt sent as its ids share a cache.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

_TOKEN: Final = re.compile(
    r"-?(?:[0-9][0-9a-fA-F]|[a-fA-F][0-9])"  # two characters of a UUID
    r"| ?[A-Za-z]{1,8}"
    r"| ?[\u00c0-\u058f]{1,3}"  # accented Latin, Greek, Cyrillic
    r"|[\u3041-\u305a\u30a1-\u30ff][\u3041-\u30ff]|[\u3041-\u30ff]"  # kana: the first third of the table pairs up
    r"|[\u4e00-\u63ff][\u4e00-\u9fff]|[\u4e00-\u9fff]"  # and so does a part of the ideographs
    r"|[\u0590-\u1fff]{1,2}|[\uac00-\ud7af]"
    r"|[!-/:-@\[-`{-~]{1,3}"
    r"|[ \t]{1,8}|[\r\n]{1,4}"
    r"|[\s\S]"
)
_SLICE_CHARACTERS: Final = 65536  # bounds the memory of a 64 MiB body; the cuts depend on the position alone
_ID_BITS: Final = 0x7FFFFFFF
_KNOWN_IDS_LIMIT: Final = 1_000_000


class _Ids(dict[str, int]):
    """Token -> id, filled on first use."""

    def __missing__(self, token: str) -> int:
        if len(self) >= _KNOWN_IDS_LIMIT:
            self.clear()
        found = self[token] = xxhash.xxh32_intdigest(token.encode("utf-8", "surrogatepass")) & _ID_BITS
        return found


_ids: Final = _Ids()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a text, and the chained hashes of its full blocks: each stands for everything up to its end."""

    ids: array[int]
    block_size: int
    block_hashes: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.ids)

    def followed_by(self, ids: Iterable[int]) -> Tokens:
        """These tokens and then `ids`: the hash chain continues."""
        longer = self.ids + array("q", ids)
        return Tokens(
            longer, self.block_size, (*self.block_hashes, *_chain(longer, self.block_size, self.block_hashes))
        )


def split(text: str) -> Iterator[list[str]]:
    """The tokens of `text`, in lists that together are all of them."""
    for start in range(0, len(text), _SLICE_CHARACTERS):
        yield _TOKEN.findall(text[start : start + _SLICE_CHARACTERS])


def ids_of(tokens: Iterable[str]) -> Iterator[int]:
    return map(_ids.__getitem__, tokens)


def text_of(ids: Iterable[int]) -> str:
    """The text of `ids`, as far as this process has met their tokens: the others are replacement characters."""
    wanted = list(ids)
    known = set(wanted)
    texts = {found: token for token, found in _ids.items() if found in known}
    return "".join(texts.get(each, "\ufffd") for each in wanted)


def tokenize(text: str, block_size: int, limit_tokens: int, salt: str = "") -> Tokens:
    """Tokens of `text`, but no more than the first slice that passes `limit_tokens`: a prompt too long is refused."""
    ids = array("q")
    for tokens in split(text):
        ids.extend(ids_of(tokens))
        if len(ids) > limit_tokens:
            break
    return from_ids(ids, block_size, salt)


def from_ids(ids: Iterable[int], block_size: int, salt: str = "") -> Tokens:
    """Tokens of a prompt given as ids. Blocks of another salt are other blocks."""
    all_ids = array("q", ids)
    seed = xxhash.xxh3_64_intdigest(salt.encode()) if salt else 0
    return Tokens(all_ids, block_size, tuple(_chain(all_ids, block_size, (), seed)))


def _chain(ids: array[int], block_size: int, known: Sequence[int], seed: int = 0) -> Iterator[int]:
    """Hashes of the full blocks after the `known` ones."""
    digest = xxhash.xxh3_64_intdigest
    raw = memoryview(ids).cast("B")
    width = block_size * ids.itemsize
    seed = known[-1] if known else seed
    for start in range(len(known) * width, len(raw) - width + 1, width):
        seed = digest(raw[start : start + width], seed)
        yield seed
