"""When this process last stood still: suspended, or without a CPU. What it timed meanwhile says nothing of engines."""

from __future__ import annotations

from math import inf
from typing import Final

STALL_S: Final = 1.0  # what is shorter is one odd sample among others


class Stalls:
    """Somebody must `look` many times a second. Times are of the router's clock."""

    __slots__ = ("_ended_s", "_looked_s")

    def __init__(self) -> None:
        self._looked_s = inf  # nobody has looked yet
        self._ended_s = -inf

    def look(self, now_s: float) -> None:
        if now_s - self._looked_s >= STALL_S:
            self._ended_s = now_s
        self._looked_s = now_s

    def any_since(self, began_s: float, now_s: float) -> bool:
        """Whether it stood still in between; what came meanwhile may be handled before anybody looks."""
        return self._ended_s >= began_s or now_s - self._looked_s >= STALL_S
