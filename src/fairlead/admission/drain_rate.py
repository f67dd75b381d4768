"""How fast a queue empties: engine milliseconds given out for each millisecond that something waits."""

from __future__ import annotations

import math
from typing import Final

_MEMORY_S: Final = 10.0
_LEAST_S: Final = 0.5  # of waiting, before the rate is believed


class DrainRate:
    """A rate over the last ten seconds or so in which something waited."""

    __slots__ = ("_gave_ms", "_since_s", "_waited_s")

    def __init__(self) -> None:
        self._gave_ms = 0.0
        self._waited_s = 0.0
        self._since_s: float | None = None  # when it was last looked at; None: nothing waits

    def gave(self, engine_ms: float, now_s: float) -> None:
        """A request that waited was given its endpoint."""
        if self._since_s is not None:
            passed_s = max(0.0, now_s - self._since_s)
            kept = math.exp(-passed_s / _MEMORY_S)
            self._gave_ms = self._gave_ms * kept + engine_ms
            self._waited_s = self._waited_s * kept + passed_s
            self._since_s = now_s

    def paused(self) -> None:
        """Nothing waits any more."""
        self._since_s = None

    def began(self, now_s: float) -> None:
        """Something waits from now on."""
        if self._since_s is None:
            self._since_s = now_s

    def per_ms(self, now_s: float) -> float | None:
        """None until enough was seen. A queue that stands still becomes slower with time."""
        still_s = 0.0 if self._since_s is None else max(0.0, now_s - self._since_s)
        waited_s = self._waited_s + still_s
        if waited_s < _LEAST_S or self._gave_ms <= 0:
            return None
        return self._gave_ms / (waited_s * 1e3)
