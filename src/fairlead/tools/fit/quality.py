"""How good predicted probabilities are: log loss, Brier score and calibration, on counts instead of single attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CALIBRATION_BINS = 10
_SMALLEST = 1e-6  # one confident mistake must not make the log loss infinite


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted probabilities, each with the numbers of right and wrong attempts it was predicted for."""

    probability: FloatArray
    right: FloatArray
    wrong: FloatArray

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        return cls(
            np.concatenate([part.probability for part in parts]),
            np.concatenate([part.right for part in parts]),
            np.concatenate([part.wrong for part in parts]),
        )

    def rows(self) -> int:
        return int(self.right.sum() + self.wrong.sum())

    def log_loss(self) -> float:
        """Mean of -log(probability of the outcome); ln 2 for a coin toss."""
        return log_loss_sum(self.probability, self.right, self.wrong) / self.rows()

    def brier(self) -> float:
        """Mean squared distance from what happened, 0 best."""
        miss = self.right * (1 - self.probability) ** 2 + self.wrong * self.probability**2
        return float(miss.sum()) / self.rows()

    def reliability(self) -> list[tuple[float, float, int]]:
        """Mean prediction, observed rate and count for each tenth of the range that holds any prediction."""
        bin_of = np.minimum((self.probability * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
        count = self.right + self.wrong
        points = []
        for index in range(CALIBRATION_BINS):
            here = (bin_of == index) & (count > 0)
            if here.any():
                total = float(count[here].sum())
                predicted = float((self.probability[here] * count[here]).sum()) / total
                points.append((predicted, float(self.right[here].sum()) / total, int(total)))
        return points

    def calibration_error(self) -> float:
        """Expected calibration error: mean distance of predicted from observed rate, 0 best."""
        return sum(abs(predicted - seen) * count for predicted, seen, count in self.reliability()) / self.rows()


def log_loss_sum(probability: FloatArray, right: FloatArray, wrong: FloatArray) -> float:
    sure = np.clip(probability, _SMALLEST, 1 - _SMALLEST)
    return float(-(right * np.log(sure) + wrong * np.log1p(-sure)).sum())


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of predictions for held-out attempts, next to that of always predicting the overall rate (`base`)."""

    rows: int
    log_loss: float
    base_log_loss: float
    brier: float
    base_brier: float
    calibration_error: float

    @classmethod
    def of(cls, held_out: Predictions, base: Predictions) -> Self:
        return cls(
            rows=held_out.rows(),
            log_loss=held_out.log_loss(),
            base_log_loss=base.log_loss(),
            brier=held_out.brier(),
            base_brier=base.brier(),
            calibration_error=held_out.calibration_error(),
        )
