"""What engines have answered. One that has answered a prompt has it cached, to the last token, and its answer.

The prefix index knows whole blocks of prompts. The next prompt of a conversation repeats the answer as well, and only
the engine that generated it has it cached. It is found by a hash of the text before it, to the last byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from statistics import median
from typing import Final

import msgspec

MOST: Final = 32_768  # in each of two generations: some 10 MB for each table of them
_SHARES: Final = 5


class Answered(msgspec.Struct, frozen=True, gc=False):
    """An answer that an engine gave."""

    address: str
    used_s: float  # when its prompt was last in use there
    prompt_tokens: int | None  # as the engine reported them
    reply_tokens: int | None


class Answers:
    """The last answer for each key. The oldest half goes when it is full."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: dict[int, Answered] = {}
        self._old: dict[int, Answered] = {}

    def get(self, key: int) -> Answered | None:
        return self._new.get(key) or self._old.get(key)

    def add(self, key: int, answered: Answered) -> None:
        self._new[key] = answered
        if len(self._new) >= MOST:
            self._old, self._new = self._new, {}

    def drop(self, key: int, address: str) -> None:
        """The engine there has not answered it after all."""
        for answers in (self._new, self._old):
            known = answers.get(key)
            if known is not None and known.address == address:
                del answers[key]

    def forget(self, addresses: Collection[str]) -> None:
        """The engines there have left the pool; others may come to their addresses."""
        for answers in (self._new, self._old):
            for key in [key for key, each in answers.items() if each.address in addresses]:
                del answers[key]


class AnsweredPrompts(Answers):
    """By `Turn.key`."""

    __slots__ = ("_shares",)

    def __init__(self) -> None:
        super().__init__()
        self._shares: dict[str, deque[float]] = {}

    def reply_share(self, model: str) -> float:
        """How much of its own answers the model's engines find cached: none where its template drops its reasoning."""
        shares = self._shares.get(model)
        return median(shares) if shares else 1.0

    def learn_share(self, model: str, share: float) -> None:
        self._shares.setdefault(model, deque(maxlen=_SHARES)).append(share)

    def forget_all_but(self, models: Iterable[str]) -> None:
        kept = set(models)
        self._shares = {model: shares for model, shares in self._shares.items() if model in kept}
