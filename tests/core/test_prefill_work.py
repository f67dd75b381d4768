"""What computing a part of a prompt takes, where attention reads all that is before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.prefill_work import attended_tokens, work_tokens

growths = st.floats(0, 1e-3)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_what_is_attended_are_the_tokens_before_each_and_half_of_itself(cached: int, computed: int) -> None:
    before = sum(range(cached, cached + computed))
    assert attended_tokens(cached + computed, computed) == pytest.approx(before + computed / 2, abs=0.5)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), growths)
def test_a_prompt_takes_as_long_in_two_parts_as_in_one(cached: int, first: int, second: int, growth: float) -> None:
    parts = work_tokens(first, cached, growth) + work_tokens(second, cached + first, growth)
    assert parts == pytest.approx(work_tokens(first + second, cached, growth))


@given(st.integers(0, 10**6), st.integers(0, 10**6), growths)
def test_work_is_what_is_computed_and_its_share_of_what_that_attends(cached: int, computed: int, growth: float) -> None:
    whole = computed + growth * attended_tokens(cached + computed, computed)
    assert work_tokens(computed, cached, growth) == pytest.approx(whole, abs=1)


def test_without_growth_a_token_takes_as_long_wherever_it_is() -> None:
    assert work_tokens(1000, 50_000, 0.0) == 1000
