"""Failures in a row that end the use of something for a while: for a cool-down, after which it is on trial.

The next failure then ends it for twice as long, the next success clears it. A failure that may be its request's own
fault counts once for each `cause`: a request that fails wherever it goes, and is sent again and again, ends nothing.
"""

from __future__ import annotations

from typing import Final

REQUEST_FAILURES_TO_EJECT: Final = 5
FIRST_COOL_DOWN_S: Final = 5.0
LONGEST_COOL_DOWN_S: Final = 60.0
_MOST_CAUSES: Final = 32  # that are kept: far more than a streak needs


class Streak:
    """`look` and the next failure end a cool-down. `outs` counts how often it was out."""

    __slots__ = ("_causes", "_cool_down_s", "_out_s", "failures", "outs")

    def __init__(self) -> None:
        self.failures = 0
        self.outs = 0
        self._causes: set[int | None] = set()  # of those that count once
        self._cool_down_s = FIRST_COOL_DOWN_S  # the next one
        self._out_s: float | None = None  # since when, until the cool-down has passed

    @property
    def is_out(self) -> bool:
        return self._out_s is not None

    def failed(self, now_s: float, cause: int | None = None) -> None:
        """`cause`: what stands for the request, where it may be at fault itself."""
        self.look(now_s)
        if cause in self._causes:
            return
        if cause is not None and len(self._causes) < _MOST_CAUSES:
            self._causes.add(cause)
        self.failures += 1
        if self._out_s is None and self.failures >= REQUEST_FAILURES_TO_EJECT:
            self._out_s = now_s
            self.outs += 1

    def suspected(self, now_s: float, cause: int | None = None) -> None:
        """It or another failed: it is out at its next failure, and not before."""
        if self.failures < REQUEST_FAILURES_TO_EJECT - 1:
            self.failed(now_s, cause)

    def clear(self) -> None:
        """It succeeded."""
        if not self.failures:
            return
        self.failures = 0
        self._causes.clear()
        self._cool_down_s = FIRST_COOL_DOWN_S
        self._out_s = None

    def look(self, now_s: float) -> None:
        """On trial from now on if the time has come; a clock that went back ends the cool-down too."""
        if self._out_s is not None and not 0 <= now_s - self._out_s < self._cool_down_s:
            self._out_s = None
            self.failures = REQUEST_FAILURES_TO_EJECT - 1
            self._cool_down_s = min(2 * self._cool_down_s, LONGEST_COOL_DOWN_S)
