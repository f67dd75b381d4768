"""What trials make likely of weights that were not tried."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tuning.surface import Expected, SeenTrial, Surface

CENTRE = (0.5, 0.5)
part = st.floats(0.0, 1.0)
place = st.tuples(part, part)
trial = st.builds(SeenTrial, place, place, st.floats(-1.0, 1.0), st.floats(0.0, 1.0))


def bowl(at: tuple[float, ...]) -> float:
    """The time there, as a logarithm: least at (0.7, 0.4)."""
    return (at[0] - 0.7) ** 2 + 0.5 * (at[1] - 0.4) ** 2


def trials_of_the_bowl(count: int, *, error: float) -> list[SeenTrial]:
    rng = Random(0)
    found = []
    for _ in range(count):
        tried = (rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.8))
        found.append(SeenTrial(tried, CENTRE, bowl(CENTRE) - bowl(tried) + rng.gauss(0.0, error), error))
    return found


def test_before_any_trial_no_gain_is_expected_and_far_places_are_less_sure() -> None:
    surface = Surface((), CENTRE)
    near, far = surface.expected((0.51, 0.5)), surface.expected((0.9, 0.5))
    assert near.gain == far.gain == 0.0
    assert near.error < far.error


def test_the_gain_of_an_untried_point_is_predicted_from_others() -> None:
    surface = Surface(trials_of_the_bowl(60, error=0.02), CENTRE)
    for untried in ((0.7, 0.4), (0.3, 0.5), (0.5, 0.65)):
        expected = surface.expected(untried)
        assert expected.gain == pytest.approx(bowl(CENTRE) - bowl(untried), abs=0.02)
        assert expected.error < 0.05


def test_places_are_drawn_from_where_gains_are_likely() -> None:
    surface = Surface(trials_of_the_bowl(60, error=0.02), CENTRE)
    places = [(0.7, 0.4), (0.3, 0.6), (0.4, 0.2)]
    assert {surface.best(places, Random(seed)) for seed in range(20)} == {(0.7, 0.4)}


def test_without_trials_every_direction_is_looked_into() -> None:
    places = [(0.7, 0.5), (0.3, 0.5), (0.5, 0.7), (0.5, 0.3)]
    assert {Surface((), CENTRE).best(places, Random(seed)) for seed in range(60)} == set(places)


def test_a_late_trial_counts_more_than_an_early_one() -> None:
    tried = (0.6, 0.5)
    good, bad = SeenTrial(tried, CENTRE, 0.1, 0.05), SeenTrial(tried, CENTRE, -0.1, 0.05)
    assert Surface((bad, *[good] * 30), CENTRE).expected(tried).gain > 0.05
    assert Surface((*[bad] * 30, *[good] * 30), CENTRE).expected(tried).gain > 0.0


def test_a_trial_far_from_the_incumbent_says_less_of_its_neighbours_than_a_near_one() -> None:
    near, far = SeenTrial((0.6, 0.5), CENTRE, 0.1, 0.01), SeenTrial((0.6, 1.0), (0.5, 1.0), 0.1, 0.01)
    neighbour = (0.55, 0.5)
    assert Surface((near,), CENTRE).expected(neighbour).error < Surface((far,), CENTRE).expected(neighbour).error


def test_what_is_seen_moves_what_was_expected_by_how_sure_both_are() -> None:
    equally = Expected(0.0, 0.1).with_seen(0.2, 0.1)
    assert equally.gain == pytest.approx(0.1)
    assert equally.error == pytest.approx(0.1 / math.sqrt(2))
    assert Expected(0.0, 0.01).with_seen(0.2, 1.0).gain < 0.001
    assert Expected(0.0, 1.0).with_seen(0.2, 0.0).gain == pytest.approx(0.2, abs=0.001)


@given(st.lists(trial, max_size=30), place, place, st.integers(0, 99))
def test_any_trials_give_finite_expectations(
    trials: list[SeenTrial], around: tuple[float, float], at: tuple[float, float], seed: int
) -> None:
    surface = Surface(trials, around)
    expected = surface.expected(at)
    assert math.isfinite(expected.gain)
    assert expected.error >= 0.0
    assert surface.expected(around).gain == 0.0
    assert surface.best([at, around], Random(seed)) in (at, around)
