"""A statistic of the last samples of something."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

WINDOW: Final = 101
LEAST_SAMPLES: Final = 8
LEAST_LOADS: Final = 4  # of adapters, to believe in how long they took


class Running:
    """A statistic of the last samples, or `start` while they are few."""

    __slots__ = ("_least", "_of", "kept", "value")

    def __init__(self, of: Callable[[Collection[float]], float], start: float, least: int = LEAST_SAMPLES) -> None:
        self.value = start
        self._of = of
        self._least = least
        self.kept: deque[float] = deque(maxlen=WINDOW)

    def add(self, sample: float) -> None:
        self.kept.append(sample)
        if len(self.kept) >= self._least:
            self.value = self._of(self.kept)

    @property
    def samples(self) -> int:
        return len(self.kept)

    @property
    def learned(self) -> bool:
        return len(self.kept) >= self._least
