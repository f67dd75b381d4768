"""What rounds come to."""

from __future__ import annotations

import math

import pytest

from fairlead.tuning.evidence import Evidence, Noise, log_ratio
from fairlead.tuning.fair import Sample
from fairlead.tuning.surface import Expected
from fairlead.tuning.window import Measure

UNKNOWN = Expected(0.0, 1.0)
HOME = {"rtt_weight": 1.0}


def measure(p95_ms: float, first_token_p95_ms: float | None = None) -> Measure:
    return Measure(p95_ms, first_token_p95_ms, Sample((), 0.0), 0.0)


def evidence(*rounds: tuple[float, float, float], before: Expected = UNKNOWN) -> Evidence:
    trial = Evidence(HOME, before)
    for each in rounds:
        trial.add((measure(each[0]), measure(each[1]), measure(each[2])))
    return trial


def test_a_steady_drift_is_no_gain() -> None:
    assert evidence((100.0, 110.0, 121.0)).gain == pytest.approx(0.0)


def test_more_rounds_are_surer_but_by_less_than_if_they_shared_nothing() -> None:
    noise = Noise(0.1)
    one, two = (evidence(*[(100.0, 90.0, 100.0)] * rounds).error(noise) for rounds in (1, 2))
    assert one / math.sqrt(2) < two < one


def test_one_endless_window_does_not_decide_for_all_rounds() -> None:
    assert evidence((100.0, math.inf, 100.0), *[(100.0, 80.0, 100.0)] * 3).gain > 0.0


def test_earlier_trials_have_a_say() -> None:
    rounds, noise = [(100.0, 90.0, 100.0)], Noise(0.1)
    assert evidence(*rounds).expected(noise).gain > 0.09
    assert evidence(*rounds, before=Expected(-0.1, 0.01)).expected(noise).gain < 0.0


def test_first_tokens_count_only_where_all_three_windows_saw_enough() -> None:
    trial = evidence()
    trial.add((measure(100.0, 50.0), measure(100.0, None), measure(100.0, 50.0)))
    assert trial.first_token_gain == 0.0
    trial.add((measure(100.0, 50.0), measure(100.0, 40.0), measure(100.0, 50.0)))
    assert trial.first_token_gain == pytest.approx(math.log(50.0 / 40.0))


@pytest.mark.parametrize(
    ("above_ms", "below_ms", "expected"),
    [
        (0.0, 0.0, 0.0),
        (math.inf, math.inf, 0.0),
        (0.0, 1.0, -math.inf),
        (1.0, math.inf, -math.inf),
        (1.0, 0.0, math.inf),
    ],
)
def test_ratios_of_nothing_and_of_never_are_reported(above_ms: float, below_ms: float, expected: float) -> None:
    assert log_ratio(above_ms, below_ms) == expected
