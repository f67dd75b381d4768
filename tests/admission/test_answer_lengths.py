"""Tenants whose answers are longer than those of others are charged for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.admission.answer_lengths import MOST_TENANTS, AnswerLengths
from tests.admission.world import World

USUAL = 256.0


def seen(tokens: float, times: int, expected: float = USUAL) -> AnswerLengths:
    lengths = AnswerLengths()
    for _ in range(times):
        lengths.observed(b"t", tokens, expected, USUAL)
    return lengths


def test_the_answers_of_a_tenant_that_is_not_known_are_usual_ones() -> None:
    assert seen(5000.0, 50).of(b"another") == 1.0


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 4.0, 20.0])
def test_after_some_tens_of_answers_their_length_is_known(factor: float) -> None:
    assert seen(factor * USUAL, 60).of(b"t") == pytest.approx(factor, rel=0.15, abs=0.1)


def test_one_long_answer_is_not_believed_as_much_as_many() -> None:
    assert 1 < seen(20 * USUAL, 1).of(b"t") < seen(20 * USUAL, 20).of(b"t")


def test_answers_as_long_as_their_requests_allow_say_nothing_of_others() -> None:
    assert seen(8.0, 60, expected=8.0).of(b"t") == 1.0


def test_answers_that_are_cut_to_a_token_do_not_make_long_ones_forgotten() -> None:
    lengths = seen(10 * USUAL, 60)
    for _ in range(100):
        lengths.observed(b"t", 1.0, 1.0, USUAL)
    assert lengths.of(b"t") > 8


def test_a_change_is_followed() -> None:
    lengths = seen(10 * USUAL, 100)
    for _ in range(60):
        lengths.observed(b"t", USUAL, USUAL, USUAL)
    assert lengths.of(b"t") < 1.6


@given(st.lists(st.tuples(st.floats(0, 1e300), st.floats(0, 1e6), st.floats(1, 1e6)), max_size=50))
def test_whatever_engines_report_the_factor_is_bounded(answers: list[tuple[float, float, float]]) -> None:
    lengths = AnswerLengths()
    for tokens, expected, usual in answers:
        lengths.observed(b"t", tokens, expected, usual)
    assert 1 / 32 <= lengths.of(b"t") <= 32


def test_tenants_that_come_and_go_do_not_fill_the_memory_and_one_that_stays_is_kept() -> None:
    lengths = seen(2 * USUAL, 60)
    before = lengths.of(b"t")
    for number in range(2 * MOST_TENANTS):
        lengths.observed(str(number).encode(), USUAL, USUAL, USUAL)
        if number % 1000 == 0:
            lengths.observed(b"t", 2 * USUAL, USUAL, USUAL)
    assert lengths.of(b"t") >= before
    assert lengths.of(b"0") == 1.0
    assert len(lengths._seen) == MOST_TENANTS


def test_of_two_tenants_that_always_have_work_each_gets_half_of_the_engine_time_whatever_their_answers() -> None:
    """Once they are known: a tenth of all answers is observed."""
    world, lengths, tokens = World(), AnswerLengths(), {b"long": 4000.0, b"short": 100.0}
    given_ms = dict.fromkeys(tokens, 0.0)

    def wait(tenant: bytes) -> None:
        cost_ms = USUAL * lengths.of(tenant)
        assert world.waits(tenant.decode(), tenant=tenant, cost_ms=cost_ms) is not None

    for tenant in tokens:
        for _ in range(4):
            wait(tenant)
    for number in range(10_000):
        name = world.leave()
        assert name is not None
        tenant = name.encode()
        if number > 5000:
            given_ms[tenant] += tokens[tenant]
        if number % 10 == 0:
            lengths.observed(tenant, tokens[tenant], USUAL, USUAL)
        wait(tenant)
    assert 0.8 < given_ms[b"long"] / given_ms[b"short"] < 1.25
