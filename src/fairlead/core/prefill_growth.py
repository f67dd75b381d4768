"""How the prefill of one model grows with what is before a token, from all that its answers ever showed.

It is a matter of the model and its kernels, and not of the load: so estimates of many times count together, each by
what it knows, and an estimate from prompts that are all alike knows nothing. See `core.prefill_work`.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

EVERY: Final = 16  # new samples
_NEW_SHARE: Final = 0.23  # of what an estimate goes by came since the one before it: 16 samples of a half-life of 48
_KEPT: Final = 0.99  # of what was known, at each estimate
_SURE: Final = 3.0  # times the error: less is taken for none
_CHANGED: Final = 4.0  # times the error of both: an engine that is not what it was
_MISFIT: Final = 0.1  # of what the longest prompt takes, by which no line is the truth


class Estimate(NamedTuple):
    """Out of the samples of one time."""

    growth: float  # negative by chance
    error: float  # its standard deviation; infinite: the samples do not tell
    longest: float  # tokens before one of a prompt, on average, of the longest prompt


class PrefillGrowth:
    """`value` is in force: 0 until it is certain that there is any."""

    __slots__ = ("_due", "_known", "_mean", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._mean = 0.0
        self._known = 0.0  # 1 / variance
        self._due = 0

    def is_due(self, samples: int) -> bool:
        """Whether there are enough new ones among all `samples` so far; then it is due again some samples later."""
        if samples < self._due:
            return False
        self._due = samples + EVERY
        return True

    def add(self, found: Estimate) -> None:
        if found.error == math.inf or found.longest <= 0:
            return
        error = max(found.error, _MISFIT / found.longest)
        if self._known and abs(found.growth - self._mean) > _CHANGED * math.sqrt(error**2 + 1 / self._known):
            self._known = 0.0
        new, old = (_NEW_SHARE if self._known else 1.0) / error**2, _KEPT * self._known
        self._mean = (old * self._mean + new * found.growth) / (old + new)
        self._known = old + new
        self.value = self._mean if self._mean * math.sqrt(self._known) > _SURE else 0.0

    def restore(self, value: float) -> None:
        """Go on from what another process was certain of."""
        self.value = self._mean = value
        self._known = (_SURE / value) ** 2 if value > 0 else 0.0
