"""Scores of predicted probabilities, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.tools.fit.quality import Predictions


def predictions(*rows: tuple[float, int, int]) -> Predictions:
    probability, right, wrong = np.array(rows, dtype=float).T
    return Predictions(probability, right, wrong)


def test_a_coin_scores_as_a_coin() -> None:
    coin = predictions((0.5, 5, 5))
    assert (coin.log_loss(), coin.brier(), coin.calibration_error()) == pytest.approx((math.log(2), 0.25, 0))


def test_scores_weigh_each_attempt_the_same() -> None:
    two_cells = predictions((0.8, 3, 1), (0.2, 0, 1))
    assert two_cells.log_loss() == pytest.approx(-(4 * math.log(0.8) + math.log(0.2)) / 5)
    assert two_cells.brier() == pytest.approx((4 * 0.04 + 0.64) / 5)


def test_calibration_error_is_the_mean_distance_of_prediction_and_rate() -> None:
    assert predictions((0.95, 6, 4), (0.15, 1, 9)).calibration_error() == pytest.approx((0.35 * 10 + 0.05 * 10) / 20)


def test_one_confident_mistake_is_costly_and_not_infinite() -> None:
    assert 10 < predictions((1.0, 0, 1)).log_loss() < 20


def test_cells_without_attempts_do_not_count() -> None:
    assert predictions((0.5, 1, 1), (0.9, 0, 0)).reliability() == [(0.5, 0.5, 2)]
