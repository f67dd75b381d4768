"""Whether an engine may be chosen, from probes and from what requests meet on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.health import Health
from fairlead.core.pool import Pool
from fairlead.core.streak import FIRST_COOL_DOWN_S, LONGEST_COOL_DOWN_S, REQUEST_FAILURES_TO_EJECT
from tests.core.world import make_endpoint

TO_EJECT = 3


@pytest.fixture
def health() -> Health:
    return Health()


def eject_by_requests(health: Health, now_s: float) -> None:
    for _ in range(REQUEST_FAILURES_TO_EJECT):
        health.failed(now_s)
    assert not health.healthy


def test_an_engine_is_healthy_until_told_otherwise(health: Health) -> None:
    assert health.healthy
    assert not health.doubtful


def test_probes_that_fail_in_a_row_eject_and_the_first_success_brings_back(health: Health) -> None:
    assert [health.probed(False, now_s, TO_EJECT) for now_s in range(4)] == [True, True, False, False]
    assert health.probed(True, 4, TO_EJECT)
    assert (health.ejections, health.returns) == (1, 1)


def test_a_success_between_starts_the_count_of_failed_probes_again(health: Health) -> None:
    for answered in (False, False, True, False, False):
        assert health.probed(answered, 0, TO_EJECT)


def test_requests_that_fail_in_a_row_eject_though_probes_are_answered(health: Health) -> None:
    for _ in range(REQUEST_FAILURES_TO_EJECT - 1):
        assert health.failed(0)
        assert health.probed(True, 0, TO_EJECT)
    assert not health.failed(0)
    assert not health.probed(True, FIRST_COOL_DOWN_S / 2, TO_EJECT)
    assert health.last_resort


def test_a_served_request_between_starts_the_count_of_failed_ones_again(health: Health) -> None:
    for _ in range(3 * REQUEST_FAILURES_TO_EJECT):
        assert health.failed(0)
        assert health.succeeded()


def test_after_the_cool_down_one_more_failure_ejects_for_twice_as_long(health: Health) -> None:
    eject_by_requests(health, 0)
    assert health.probed(True, FIRST_COOL_DOWN_S, TO_EJECT)
    assert not health.failed(FIRST_COOL_DOWN_S)
    assert not health.probed(True, 2.9 * FIRST_COOL_DOWN_S, TO_EJECT)
    assert health.probed(True, 3 * FIRST_COOL_DOWN_S, TO_EJECT)


def test_after_the_cool_down_one_served_request_clears_it(health: Health) -> None:
    eject_by_requests(health, 0)
    health.probed(True, FIRST_COOL_DOWN_S, TO_EJECT)
    health.succeeded()
    assert all(health.failed(FIRST_COOL_DOWN_S) for _ in range(REQUEST_FAILURES_TO_EJECT - 1))
    assert not health.failed(FIRST_COOL_DOWN_S)
    assert health.probed(True, 2 * FIRST_COOL_DOWN_S, TO_EJECT)  # the cool-down is the first one again


def test_a_request_served_in_the_cool_down_ends_it(health: Health) -> None:
    eject_by_requests(health, 0)
    assert health.succeeded()


def test_requests_that_fail_in_the_cool_down_do_not_make_it_longer(health: Health) -> None:
    eject_by_requests(health, 0)
    for now_s in (1, 2, 3, 4):
        health.failed(now_s)
    assert health.probed(True, FIRST_COOL_DOWN_S, TO_EJECT)


def test_an_engine_that_was_gone_and_is_back_owes_nothing_to_earlier_requests(health: Health) -> None:
    eject_by_requests(health, 0)
    for _ in range(TO_EJECT):
        health.probed(False, 1, TO_EJECT)
    assert health.probed(True, 2, TO_EJECT)


def test_a_clock_that_goes_back_does_not_keep_an_engine_out(health: Health) -> None:
    eject_by_requests(health, 1e6)
    assert health.probed(True, 5, TO_EJECT)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["answered", "unanswered", "failed", "served"]), st.floats(0, 100)), max_size=60
)


def play(health: Health, events: list[tuple[str, float]]) -> float:
    now_s = 0.0
    for event, pause_s in events:
        now_s += pause_s
        if event == "failed":
            told = health.failed(now_s)
        elif event == "served":
            told = health.succeeded()
        else:
            told = health.probed(event == "answered", now_s, TO_EJECT)
        assert told == health.healthy
    return now_s


@given(EVENTS)
def test_whatever_came_before_answers_and_time_bring_an_engine_back(events: list[tuple[str, float]]) -> None:
    health = Health()
    now_s = play(health, events)
    health.probed(True, now_s, TO_EJECT)
    assert health.probed(True, now_s + LONGEST_COOL_DOWN_S, TO_EJECT)


@given(EVENTS)
def test_ejections_and_returns_alternate_and_tell_the_state(events: list[tuple[str, float]]) -> None:
    health = Health()
    play(health, events)
    assert health.ejections - health.returns == (not health.healthy)


@given(EVENTS)
def test_an_engine_whose_probes_fail_is_out_whatever_requests_met(events: list[tuple[str, float]]) -> None:
    health = Health()
    now_s = play(health, events)
    for _ in range(TO_EJECT):
        health.probed(False, now_s, TO_EJECT)
    assert not health.succeeded()
    assert not health.last_resort


def test_the_endpoint_shows_its_health_to_the_request_path() -> None:
    endpoint = make_endpoint("10.0.0.1:1", "m")
    for _ in range(REQUEST_FAILURES_TO_EJECT):
        endpoint.request_failed(0)
    assert not endpoint.health.healthy
    endpoint.health.succeeded()
    assert endpoint.health.healthy
    for _ in range(TO_EJECT):
        endpoint.health.probed(False, 0, TO_EJECT)
    assert not endpoint.health.healthy


def test_engines_that_fail_requests_are_tried_only_when_no_other_is_left() -> None:
    failing, well, gone = (make_endpoint(f"10.0.0.{n}:1", "m") for n in (1, 2, 3))
    pool = Pool([failing, well, gone], {})
    for _ in range(REQUEST_FAILURES_TO_EJECT):
        failing.request_failed(0)
        gone.health.probed(False, 0, TO_EJECT)
    assert pool.available("m") == [well]
    for _ in range(TO_EJECT):
        well.health.probed(False, 0, TO_EJECT)
    assert pool.available("m") == [failing]
    assert pool.available("m", {"10.0.0.2:1"}) == []
