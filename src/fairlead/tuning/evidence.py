"""The result of one trial's rounds: how much faster the candidate was than the incumbent, and how certain that is.

A round is a window of the candidate between two of the incumbent. Gains are differences of the logarithms of p95 times,
above 0 where the candidate is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from fairlead.tuning.fair import p95s_ms
from fairlead.tuning.surface import Expected
from fairlead.tuning.weights import Weights
from fairlead.tuning.window import Measure

_NOISE_KEPT: Final = 0.9  # weight kept by earlier pairs at each new one, because traffic changes
_CLIPPED: Final = 0.3  # limit for a difference of logarithms: one burst must not decide over all rounds

Round = tuple[Measure, Measure, Measure]  # the incumbent, the candidate, the incumbent again


class Noise:
    """How much windows under the same weights differ: the standard deviation of one; the latest count most."""

    def __init__(self, expected: float) -> None:
        self._sum, self._weight = expected**2, 1.0

    @property
    def deviation(self) -> float:
        return math.sqrt(self._sum / self._weight)

    def add(self, difference: float) -> None:
        self._sum = self._sum * _NOISE_KEPT + difference**2 / 2  # both windows are noisy
        self._weight = self._weight * _NOISE_KEPT + 1.0


class Evidence:
    """The trial of one candidate; `before` is the gain expected after earlier trials."""

    def __init__(self, candidate: Weights, before: Expected) -> None:
        self.candidate = candidate
        self._before = before
        self._gains: list[float] = []
        self._first_token_gains: list[float] = []

    @property
    def rounds(self) -> int:
        return len(self._gains)

    @property
    def gain(self) -> float:
        """The gain shown by its own rounds."""
        return fmean(self._gains)

    @property
    def first_token_gain(self) -> float:
        """The same for p95 time to the first token; 0 if too few were seen."""
        return fmean(self._first_token_gains) if self._first_token_gains else 0.0

    def add(self, measures: Round) -> None:
        self._gains.append(_gain(*fair_p95s_ms(measures)))
        seen = [m.first_token_p95_ms for m in measures if m.first_token_p95_ms is not None]
        if len(seen) == len(measures):
            self._first_token_gains.append(_gain(*seen))

    def error(self, noise: Noise) -> float:
        """Standard error of `gain`. Rounds share the incumbent's windows between them: 1, 2 ... 2, 1 halves."""
        return noise.deviation * math.sqrt((2.0 - 0.5 / self.rounds) / self.rounds)

    def expected(self, noise: Noise) -> Expected:
        """The expected gain after earlier trials and this one's rounds."""
        return self._before.with_seen(self.gain, self.error(noise))


def fair_p95s_ms(measures: Sequence[Measure]) -> Sequence[float]:
    """The p95 time to the end of each window, with lengths of prompts and answers made equal where they are known."""
    fair = p95s_ms([measure.sample for measure in measures])
    return [measure.p95_ms for measure in measures] if fair is None else fair


def clipped_log_ratio(above_ms: float, below_ms: float) -> float:
    """log(above / below), clipped to what one window may count."""
    return max(-_CLIPPED, min(_CLIPPED, log_ratio(above_ms, below_ms)))


def log_ratio(above_ms: float, below_ms: float) -> float:
    """log(above / below), for times that may be 0 or infinite; 0 for equal ones."""
    if above_ms == below_ms:
        return 0.0
    if above_ms == 0.0 or below_ms == math.inf:
        return -math.inf
    return math.log(above_ms / below_ms) if below_ms > 0.0 else math.inf


def _gain(before_ms: float, tried_ms: float, after_ms: float) -> float:
    """How much smaller the candidate's time is than the mean of its neighbours, in logarithms."""
    return (clipped_log_ratio(before_ms, tried_ms) + clipped_log_ratio(after_ms, tried_ms)) / 2
