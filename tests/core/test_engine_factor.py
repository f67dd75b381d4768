"""Which samples of one engine are kept to compare it with its model."""

from __future__ import annotations

import pytest

from fairlead.core.answer_times import Line, Work
from fairlead.core.engine_factor import MOST_SAMPLES, EngineFactor, decode_ms
from fairlead.core.speed_changes import SpeedChanges

LINE = Line(0.0, 0.1, 10.0, 0.0)


def kept_after(answers: int, every_s: float) -> list[float]:
    """The times at which the kept answers ended, of `answers` that ended `every_s` after each other."""
    factor, changes = EngineFactor(decode_ms), SpeedChanges()
    for number in range(answers):
        factor.add(Work(1000.0, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0, 1.0, number * every_s), LINE, changes)
    return [each.ended_s for each in factor.samples]


def test_those_of_a_busy_engine_reach_back_further_than_its_last_answers() -> None:
    ended_s = kept_after(2000, 0.1)
    assert len(ended_s) == MOST_SAMPLES
    assert ended_s[-16:] == pytest.approx([(1984 + number) * 0.1 for number in range(16)]), (
        "the newest, to see a change"
    )
    assert ended_s[-1] - ended_s[0] > 90.0


def test_they_do_not_reach_back_for_ever() -> None:
    ended_s = kept_after(100_000, 0.1)
    assert ended_s[-1] - ended_s[0] < 150.0


def test_of_an_engine_that_answers_now_and_then_the_last_are_kept() -> None:
    assert kept_after(200, 5.0) == [(200 - MOST_SAMPLES + number) * 5.0 for number in range(MOST_SAMPLES)]
