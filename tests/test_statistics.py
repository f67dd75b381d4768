"""Quantiles and least squares."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.statistics import above_rank, least_squares, line_through, quantile
from fairlead.tools.replay.rows import NEAREST_RANK

TIMES = st.lists(st.floats(0, 1e6), min_size=1)
SHARES = st.floats(0.01, 1)


@given(TIMES, SHARES)
def test_a_quantile_is_one_of_the_values_and_enough_of_them_are_not_above_it(values: list[float], share: float) -> None:
    found = quantile(values, share)

    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_p99_of_a_hundred_values_leaves_one_above() -> None:
    assert quantile([float(n) for n in range(1, 101)], 0.99) == 99.0


@given(TIMES, SHARES)
def test_as_many_lie_above_as_above_rank_says(values: list[float], share: float) -> None:
    assert sorted(values)[-1 - above_rank(len(values), share)] == quantile(values, share)


@given(TIMES, st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_tables_of_replays_count_the_same_rank(values: list[float], share: float) -> None:
    assert pl.Series(values).quantile(share, NEAREST_RANK) == quantile(values, share)


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=3), st.tuples(*[st.floats(-9, 9)] * 3))
def test_values_that_are_a_sum_of_columns_are_met(rows: list[tuple[float, float]], truth: tuple[float, ...]) -> None:
    columns = [[1.0] * len(rows), *map(list, zip(*rows, strict=True))]
    values = [sum(factor * each for factor, each in zip(truth, row, strict=True)) for row in zip(*columns, strict=True)]

    found = least_squares(columns, values)

    for row, value in zip(zip(*columns, strict=True), values, strict=True):
        met = sum(factor * each for factor, each in zip(found, row, strict=True))
        assert met == pytest.approx(value, rel=1e-3, abs=1e-2)


def test_a_column_that_says_nothing_new_gets_nothing() -> None:
    assert least_squares([[1.0, 2.0], [2.0, 4.0], [0.0, 0.0]], [3.0, 6.0]) == [3.0, 0.0, 0.0]


def test_what_the_rows_say_nothing_of_stays_as_assumed() -> None:
    found = least_squares([[1.0, 2.0], [0.0, 0.0]], [3.0, 6.0], assumed=[(0.0, 0.0), (0.1, 7.0)])

    assert found == pytest.approx([3.0, 7.0])


def test_a_row_counts_by_its_weight() -> None:
    assert least_squares([[1.0, 1.0]], [0.0, 4.0], weights=[1.0, 3.0]) == [3.0]


def test_a_line_has_an_intercept_and_a_slope() -> None:
    assert line_through([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx((1.0, 2.0))


def test_a_line_through_points_of_one_x_is_flat_at_their_weighted_mean() -> None:
    assert line_through([(5.0, 1.0), (5.0, 4.0)], [2.0, 1.0]) == (2.0, 0.0)
