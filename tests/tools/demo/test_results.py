from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.client import Attempt
from fairlead.tools.demo.results import PolicySummary, QuestionResult, improvement


def result(*attempts_ms: float, correct: bool = True) -> QuestionResult:
    """A question whose last attempt alone was right, or none."""
    last = len(attempts_ms) - 1
    attempts = tuple(Attempt("m", "e", "cost", ms, 200, correct and i == last) for i, ms in enumerate(attempts_ms))
    return QuestionResult(4096, sum(attempts_ms), attempts)


def test_a_summary_counts_first_and_final_success_and_all_attempts() -> None:
    summary = PolicySummary.of([result(10), result(10, 30), result(50, 50, 50, correct=False)])
    assert summary.first_attempt_success == pytest.approx(1 / 3)
    assert summary.success == pytest.approx(2 / 3)
    assert (summary.attempts, summary.median_ms) == (2, 40)
    assert summary.mean_ms == pytest.approx(200 / 3)


def test_the_median_does_not_praise_giving_up_early() -> None:
    assert PolicySummary.of([result(900), result(1, correct=False), result(1, correct=False)]).median_ms == math.inf


def test_half_the_time_on_every_question_is_an_improvement_of_half_without_doubt() -> None:
    theirs = [result(ms) for ms in (10, 200, 3000)]
    ours = [result(ms / 2) for ms in (10, 200, 3000)]
    found = improvement(ours, theirs)
    assert (found.share, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.beyond_chance


def test_a_worse_mean_is_a_negative_improvement() -> None:
    assert improvement([result(30)], [result(20)]).share == pytest.approx(-0.5)


def test_the_interval_is_wide_where_questions_disagree() -> None:
    ours, theirs = [result(10), result(100)] * 5, [result(100), result(10)] * 5
    found = improvement(ours, theirs)
    assert found.low < 0 < found.high
    assert not found.beyond_chance


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1, max_size=30), st.integers())
def test_the_improvement_lies_between_that_of_the_best_and_the_worst_question(
    times: list[tuple[float, float]], seed: int
) -> None:
    found = improvement([result(ours) for ours, _ in times], [result(theirs) for _, theirs in times], seed)
    each = [1 - ours / theirs for ours, theirs in times]
    assert min(each) - 1e-9 <= found.low <= found.high <= max(each) + 1e-9
    assert min(each) - 1e-9 <= found.share <= max(each) + 1e-9
