"""Spreads and slopes of the report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tools.estimates import Estimate, Spread, slope_within, spread


def test_a_spread_is_the_median_between_least_and_most() -> None:
    assert spread([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)
    assert spread([3000.0, 1000.0, 10000.0]).text() == "3,000 (1,000..10,000)"


def test_a_mean_is_written_with_its_interval_or_half_of_it() -> None:
    found = Estimate(1234.5, 1200.0, 1269.0)
    assert (found.text(0), found.plus_minus(1)) == ("1,234 (1,200 to 1,269)", "1,234.5 ± 34.5")
    assert Estimate(1.5, -0.25, 3.25).text(1, "+") == "+1.5 (-0.2 to +3.2)"


@given(slope=st.floats(-100, 100).filter(lambda x: abs(x) > 0.01), heights=st.lists(st.floats(-1e3, 1e3), min_size=1))
def test_groups_of_different_height_on_lines_of_one_slope_give_that_slope(slope: float, heights: list[float]) -> None:
    points = [(n, x, height + slope * x) for n, height in enumerate(heights) for x in (1.0, 64.0, 256.0)]

    found = slope_within(points)

    assert found.slope == pytest.approx(slope, rel=1e-6)
    assert found.r_squared == pytest.approx(1.0, abs=1e-6)


def test_scatter_lowers_r_squared() -> None:
    assert slope_within([("g", 0.0, 0.0), ("g", 1.0, 5.0), ("g", 2.0, 1.0)]).r_squared < 0.1
