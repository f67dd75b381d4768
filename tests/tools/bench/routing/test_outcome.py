from __future__ import annotations

import math
from random import Random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tools.bench.routing.agents import Answered
from fairlead.tools.bench.routing.outcome import outcome
from fairlead.tools.estimates import difference, estimate, ratio

positive = st.lists(st.floats(0.01, 1e4), min_size=2, max_size=30)


def test_the_cached_share_is_of_all_tokens_and_not_a_mean_of_shares() -> None:
    answers = [Answered("a:1", 100, 0, 5.0, 9.0), Answered("b:1", 900, 900, 1.0, 3.0)]

    assert outcome("cell", "laar", 0, answers, 1.0, endpoints=2).cached_share == 0.9


def test_quantiles_are_of_times_that_some_request_took() -> None:
    answers = [Answered("a:1", 10, 0, float(n), 10.0 * n) for n in range(1, 101)]

    measured = outcome("cell", "laar", 0, answers, 1.0, endpoints=1)

    assert (measured.ttft_p50_ms, measured.ttft_p95_ms) == (50.0, 95.0)
    assert (measured.e2e_p50_ms, measured.e2e_p95_ms) == (500.0, 950.0)


def test_an_endpoint_that_got_nothing_counts_in_the_imbalance() -> None:
    answers = [Answered("a:1", 10, 0, 1.0, 2.0)] * 6

    assert outcome("cell", "laar", 0, answers, 1.0, endpoints=4).imbalance == 4.0


def test_the_interval_is_student_s_t() -> None:
    found = estimate([1.0, 2.0, 3.0])

    assert found.mean == 2.0
    assert found.high - found.mean == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)


def test_nineteen_of_twenty_intervals_hold_the_true_mean() -> None:
    rng, draw = Random(1), NormalDist(7.0, 2.0)
    for size in (2, 3, 5, 20, 30):
        samples = [[draw.inv_cdf(rng.uniform(1e-9, 1 - 1e-9)) for _ in range(size)] for _ in range(4000)]
        held = sum(not estimate(values).excludes(7.0) for values in samples) / len(samples)
        assert held == pytest.approx(0.95, abs=0.015)


def test_pairs_show_a_difference_that_the_repeats_hide() -> None:
    theirs = [100.0, 300.0, 900.0]
    ours = [90.0, 270.0, 810.0]

    assert ratio(ours, theirs).mean == pytest.approx(0.9)
    assert ratio(ours, theirs).excludes(1.0)
    assert not difference(ours, theirs).excludes(0.0)


@given(values=positive)
def test_nothing_differs_from_itself(values: list[float]) -> None:
    assert ratio(values, values) == (1.0, 1.0, 1.0)
    assert difference(values, values) == (0.0, 0.0, 0.0)


@given(values=st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(0.01, 1e4)), min_size=2, max_size=20))
def test_twice_as_slow_and_half_as_slow_are_the_same_finding(values: list[tuple[float, float]]) -> None:
    ours, theirs = [mine for mine, _ in values], [other for _, other in values]
    one, other = ratio(ours, theirs), ratio(theirs, ours)

    assert one.mean == pytest.approx(1 / other.mean)
    assert (one.low <= one.mean <= one.high) or one.low == pytest.approx(one.high)
    assert one.low == pytest.approx(1 / other.high)
