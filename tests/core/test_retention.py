"""How long an engine keeps what it computed, from what it reports to have."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.retention import Retention

AGES_S = st.floats(0.1, 1000)


def learned(kept: list[float], denied: list[float], tokens: float = 1000.0) -> Retention:
    retention = Retention()
    for age_s in kept:
        retention.observe(age_s, tokens, kept=True)
    for age_s in denied:
        retention.observe(age_s, tokens, kept=False)
    return retention


@given(st.lists(AGES_S, max_size=30))
def test_an_engine_that_denies_nothing_keeps_everything(kept: list[float]) -> None:
    assert learned(kept, []).value_s == inf


@given(st.lists(AGES_S, max_size=30), st.floats(0.1, 1000), st.lists(st.floats(0, 500), min_size=1, max_size=30))
def test_what_can_be_separated_is(kept: list[float], apart_s: float, later_s: list[float]) -> None:
    denied = [max(kept, default=0.0) + apart_s + later for later in later_s]
    value_s = learned(kept, denied).value_s
    assert max(kept, default=0.0) <= value_s < min(denied)


@given(st.lists(AGES_S, min_size=1, max_size=60), st.lists(AGES_S, max_size=60))
def test_it_never_is_shorter_than_nothing_and_knows_its_bounds(kept: list[float], denied: list[float]) -> None:
    value_s = learned(kept, denied).value_s
    assert value_s == inf or 0 <= value_s <= max(kept + denied)


def test_one_loss_among_many_older_prefixes_that_were_kept_is_chance() -> None:
    assert learned([5, 20, 60, 100, 30, 45], [8]).value_s == inf


def test_what_surprisingly_is_there_makes_it_longer_again() -> None:
    retention = learned([], [10.0])
    before_s = retention.value_s
    for _ in range(5):
        retention.surprised(1000)
    assert retention.value_s > before_s


def test_a_few_long_prompts_that_are_denied_weigh_no_more_than_others() -> None:
    """A client can have an engine deny them, whatever it has cached: all others' were forgotten there."""
    retention = learned([60.0] * 40, [])
    for _ in range(10):
        retention.observe(1.2, 60_000.0, kept=False)
    assert retention.value_s == inf
