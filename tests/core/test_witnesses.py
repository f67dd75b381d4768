"""How much one sample of an engine shows beside the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.answer_times import Work
from fairlead.core.witnesses import shares


def took(seconds: float, until_s: float) -> Work:
    return Work(seconds * 1e3, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0, 1.0, until_s)


_WORKS = st.lists(st.builds(took, st.floats(1e-3, 1e4), st.floats(0.0, 1e7)), max_size=64)


@given(_WORKS)
def test_a_sample_is_at_most_one_witness_and_never_none(works: list[Work]) -> None:
    assert all(0.0 < share <= 1.0 for share in shares(works))


@given(st.integers(1, 64), st.floats(0.01, 2.0), st.floats(0.0, 1e7))
def test_short_samples_of_one_moment_are_one_witness_together(count: int, seconds: float, until_s: float) -> None:
    assert sum(shares([took(seconds, until_s)] * count)) == pytest.approx(1.0, rel=1e-6)


def test_samples_one_after_another_are_a_witness_each() -> None:
    assert shares([took(1.0, 1.0), took(1.0, 2.0), took(5.0, 7.0)]) == pytest.approx([1.0, 1.0, 1.0])


def test_long_ones_of_one_time_are_as_many_as_it_has_moments() -> None:
    assert sum(shares([took(10.0, 10.0)] * 64)) == pytest.approx(5.0)
    assert sum(shares([took(10.0, 10.0)] * 3)) == pytest.approx(3.0)


def test_a_short_one_is_not_doubted_for_long_ones_around_it() -> None:
    """Clients that read slowly make their answers seem long, and tell nothing of the others."""
    short, *_ = shares([took(1.0, 100.0)] + [took(600.0, 300.0)] * 9)
    assert short > 0.95


@given(_WORKS, st.floats(0.0, 1e7))
def test_only_times_between_samples_count(works: list[Work], later_s: float) -> None:
    later = [took(each.took_ms / 1e3, each.ended_s + later_s) for each in works]
    assert shares(later) == pytest.approx(shares(works), rel=1e-2, abs=1e-3)
