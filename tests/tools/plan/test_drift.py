"""A new plan is asked for when traffic has moved, not when it jitters."""

from __future__ import annotations

import numpy as np

from fairlead.cascade.rows import ProfileRow
from fairlead.tools.plan.drift import RATE, DriftDetector, Quantity, traffic

PLANNED = {RATE: Quantity(10.0, 0.1), "score of small": Quantity(60.0, 1.0)}


def window(rate: float, score: float = 60.0) -> dict[str, Quantity]:
    return {RATE: Quantity(rate, 0.1), "score of small": Quantity(score, 1.0)}


def test_a_lasting_move_is_reported_with_its_numbers() -> None:
    detector = DriftDetector(PLANNED)
    assert detector.seen(window(15.0)) == []
    assert detector.seen(window(15.0)) == []
    assert detector.seen(window(15.0)) == ["requests a second: 10 -> 15"]


def test_a_burst_asks_for_nothing() -> None:
    detector = DriftDetector(PLANNED)
    for rate in [15.0, 15.0, 10.0, 15.0, 15.0, 10.0] * 3:
        assert detector.seen(window(rate)) == []


def test_between_the_bands_a_move_neither_counts_nor_ends() -> None:
    detector = DriftDetector(PLANNED)
    for rate in (15.0, 12.8, 15.0, 12.8):
        assert detector.seen(window(rate)) == []
    assert detector.seen(window(15.0)) != []


def test_scores_that_fall_are_a_move() -> None:
    detector = DriftDetector(PLANNED, windows=1)
    assert detector.seen(window(10.0, score=35.0)) == ["score of small: 60 -> 35"]


def test_chance_in_small_samples_is_no_move() -> None:
    rng = np.random.default_rng(3)

    def sampled(count: int) -> list[ProfileRow]:
        return [ProfileRow(str(i), "small", 100, 50, 1.0, float(rng.uniform(0, 100))) for i in range(count)]

    planned = traffic(sampled(400), ["small"], requests=6000, seconds=600)
    detector = DriftDetector(planned, windows=2)
    reported = [detector.seen(traffic(sampled(15), ["small"], int(rng.poisson(600)), seconds=60)) for _ in range(200)]
    assert not any(reported)


def test_a_window_without_samples_tells_nothing_of_scores() -> None:
    detector = DriftDetector(PLANNED, windows=1)
    assert detector.seen(traffic([], ["small"], requests=600, seconds=60)) == []
