"""The first requests of an engine that joins a pool at work: few at a time, until it has answered some.

Nothing is learned of it yet: it is taken to be as fast as the others of its model, and as it is idle, it is the
cheapest for whatever comes next. It may still compile, or be ten times slower. So it has a few requests at a time,
which is enough to learn from, and each answer allows it more.
"""

from __future__ import annotations

from typing import Final

FIRST_REQUESTS: Final = 4  # in flight from here before its first answer, and more with each answer
ANSWERS: Final = 8  # after which it is one of the pool


class WarmIn:
    """Of one endpoint. Not begun, it bounds nothing."""

    __slots__ = ("_answers", "is_over")

    def __init__(self) -> None:
        self._answers = 0
        self.is_over = True

    def begin(self) -> None:
        self._answers, self.is_over = 0, False

    def answered(self) -> None:
        """A request was served there, to its end."""
        self._answers += 1
        self.is_over = self._answers >= ANSWERS

    def is_full(self, inflight_requests: int) -> bool:
        """Whether it gets nothing more before one of these has ended."""
        return not self.is_over and inflight_requests >= FIRST_REQUESTS * (1 + self._answers)
