"""GORGO's tuner of weights exactly as published, faults and all: a baseline. The one to use is in `fairlead.tuning`.

A (1+1) evolution strategy with Rechenberg's 1/5 rule over the logarithms of the weights. Every `report_every` outcomes
the last `window` of them are the score of the current weights, whichever weights routed them. Source: GORGO and its
package `gorgo-lb` 0.2.0 (`GaussianESTuner`, `OnlineTuner`); `docs/tune.md` lists its faults.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final

from fairlead.tuning.weights import Box, Weights

SIGMA: Final = 0.5  # standard deviation, in the logarithm of a weight
LEAST_SIGMA: Final = 0.05
SIGMA_DECAY: Final = 0.817
SUCCESS_WINDOW: Final = 8  # proposals
TARGET_RATE: Final = 0.2
TOLERANCE: Final = 0.005  # relative; scores are negative, so it accepts worse ones
SCORED_QUANTILE: Final = 0.95
_MOST_EXPONENT: Final = 700.0  # beyond it the package raises OverflowError: its steps may grow that far


class EvolutionStrategy:
    """Proposes weights and takes their score, greater is better; the incumbent's score is never measured again."""

    def __init__(self, start: Weights, box: Box, rng: Random) -> None:
        self.best: Weights = {name: _clamped(start[name], box[name]) for name in box}
        self.best_score: float | None = None
        self.sigma = SIGMA
        self._box = box
        self._rng = rng
        self._successes: deque[bool] = deque(maxlen=SUCCESS_WINDOW)

    def propose(self) -> Weights | None:
        """The weights to try next, or None when the step has become too small to go on."""
        if self.best_score is None:
            return self.best
        if self.sigma < LEAST_SIGMA:
            return None
        found = {}
        for name, bounds in self._box.items():
            moved = math.log(self.best[name]) + self.sigma * self._rng.gauss(0.0, 1.0)
            found[name] = _clamped(math.exp(min(moved, _MOST_EXPONENT)), bounds)
        return found

    def report(self, candidate: Weights, score: float) -> bool:
        """Whether `candidate` becomes the best. The first report is always accepted."""
        if self.best_score is None:
            self.best_score = score
            return True
        accepted = score > self.best_score * (1.0 + TOLERANCE)
        if accepted:
            self.best, self.best_score = candidate, score
        self._successes.append(accepted)
        if len(self._successes) == SUCCESS_WINDOW:
            rate = sum(self._successes) / SUCCESS_WINDOW
            if rate > TARGET_RATE:
                self.sigma /= SIGMA_DECAY
            elif rate < TARGET_RATE:
                self.sigma *= SIGMA_DECAY
        return accepted


class HillClimb:
    """The strategy over a stream of times to first token; `weights` are those in force."""

    def __init__(self, start: Weights, box: Box, rng: Random, *, window: int, report_every: int) -> None:
        self._strategy = EvolutionStrategy(start, box, rng)
        self._outcomes: deque[float] = deque(maxlen=window)
        self._window = window
        self._report_every = report_every
        self._since_report = 0
        self.weights: Weights = self._strategy.best
        self.ended = False

    @property
    def best(self) -> Weights:
        """The weights with the best score so far, which its authors freeze."""
        return self._strategy.best

    def observed(self, first_token_ms: float) -> bool:
        """Add an outcome; returns whether `weights` changed."""
        self._outcomes.append(first_token_ms)
        self._since_report += 1
        if self.ended or self._since_report < self._report_every or len(self._outcomes) < self._window:
            return False
        self._since_report = 0
        self._strategy.report(self.weights, -_quantile(self._outcomes))
        proposal = self._strategy.propose()
        self.ended = proposal is None
        self.weights = self._strategy.best if proposal is None else proposal
        return True


def _quantile(values: Sequence[float]) -> float:
    """As in the package: the nearest rank, a half rounded to even."""
    return sorted(values)[round(SCORED_QUANTILE * (len(values) - 1))]


def _clamped(value: float, bounds: tuple[float, float]) -> float:
    return max(bounds[0], min(bounds[1], value))
