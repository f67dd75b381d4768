"""What happens when in a run: a heap of events on the simulated clock, each with what handles it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

_STEP, _OTHER = 0, 1  # an engine's steps up to a time come before other events at that time


class Agenda:
    """Events at the same time are handled in the order in which they were entered, engines' steps first."""

    def __init__(self, conversations: int) -> None:
        self.now_ms = 0.0
        self.open = conversations  # those that have not ended; what repeats goes on while there are any
        self._heap: list[tuple[float, int, int, Callable[[float, Any], None], Any]] = []
        self._numbers = count()

    def at(self, time_ms: float, handle: Callable[[float, Any], None], argument: Any) -> None:
        heappush(self._heap, (time_ms, _OTHER, next(self._numbers), handle, argument))

    def step_at(self, time_ms: float, handle: Callable[[float, Any], None], argument: Any) -> None:
        """As `at`, for the end of an engine's step."""
        heappush(self._heap, (time_ms, _STEP, next(self._numbers), handle, argument))

    def every(self, every_s: float, first_ms: float, handle: Callable[[float], None]) -> None:
        """Handle it at `first_ms` and again at intervals, until no conversation is open."""
        self.at(first_ms, self._again, (1e3 * every_s, handle))

    def _again(self, now_ms: float, what: tuple[float, Callable[[float], None]]) -> None:
        every_ms, handle = what
        handle(now_ms)
        if self.open:
            self.at(now_ms + every_ms, self._again, what)

    def run(self) -> None:
        """Handle events until none is left."""
        heap = self._heap
        while heap:
            self.now_ms, _, _, handle, argument = heappop(heap)
            handle(self.now_ms, argument)
