"""Where sessions live: bounded by time and by number, whatever the clock and the clients do."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.facts import session_key
from fairlead.core.sessions import SessionFacts, SessionTable

TTL_S = 80


def key(name: object) -> bytes:
    return session_key(str(name).encode())


@pytest.fixture
def table() -> SessionTable:
    return SessionTable(ttl_s=TTL_S, max_entries=4)


def test_a_session_lives_where_it_was_bound_and_an_unknown_one_nowhere(table: SessionTable) -> None:
    table.bind(key("s"), "a:1", 0)
    assert table.endpoint_of(key("s"), 1) == "a:1"
    assert table.endpoint_of(key("t"), 1) is None


def test_binding_again_moves_the_session(table: SessionTable) -> None:
    table.bind(key("s"), "a:1", 0)
    table.bind(key("s"), "b:1", 5)
    assert table.by_endpoint() == {"b:1": 1}
    assert table.about(key("s"), 7) == SessionFacts("b:1", bound_for_s=2, idle_s=2)


def test_each_use_starts_the_time_to_live_again(table: SessionTable) -> None:
    table.bind(key("s"), "a:1", 0)
    assert table.endpoint_of(key("s"), TTL_S) == "a:1"
    assert table.endpoint_of(key("s"), 2 * TTL_S) == "a:1"
    assert table.endpoint_of(key("s"), 3 * TTL_S + 1) is None
    assert table.count == 0


def test_looking_at_a_session_is_no_use_of_it(table: SessionTable) -> None:
    table.bind(key("s"), "a:1", 0)
    assert table.address_of(key("s")) == "a:1"
    assert table.about(key("s"), TTL_S) == SessionFacts("a:1", TTL_S, TTL_S)
    assert table.endpoint_of(key("s"), TTL_S + 1) is None


def test_beyond_its_bound_the_table_loses_the_session_unused_longest(table: SessionTable) -> None:
    for name in "abcd":
        table.bind(key(name), "a:1", 0)
    table.endpoint_of(key("a"), 1)
    table.bind(key("e"), "a:1", 2)
    assert [name for name in "abcde" if table.address_of(key(name))] == ["a", "c", "d", "e"]


def test_a_hundred_thousand_sessions_that_appear_once_cost_the_ones_in_use_nothing() -> None:
    table = SessionTable(max_entries=110_000)
    kept = [key(("kept", number)) for number in range(1000)]
    for session in kept:
        table.bind(session, "a:1", 0)
    for number in range(100_000):
        table.bind(key(number), "b:1", 1)
    assert [table.endpoint_of(session, 2) for session in kept] == ["a:1"] * 1000
    for number in range(100_000, 400_000):
        table.bind(number.to_bytes(16), "b:1", 3)
        if number % 50_000 == 0:
            assert {table.endpoint_of(session, 3) for session in kept} == {"a:1"}
    assert table.count <= 110_000


def test_sessions_that_appear_once_are_gone_a_time_to_live_later_without_being_asked_for() -> None:
    table = SessionTable(ttl_s=TTL_S)
    for number in range(10_000):
        table.bind(key(number), "a:1", 0)
    for number in range(10_000):
        table.bind(key(("new", number)), "b:1", TTL_S + 1)
    assert table.by_endpoint() == {"b:1": 10_000}


def test_without_new_sessions_the_expired_ones_go_when_asked(table: SessionTable) -> None:
    table.bind(key("s"), "a:1", 0)
    table.bind(key("t"), "a:1", TTL_S)
    table.expire(TTL_S + 1)
    assert table.by_endpoint() == {"a:1": 1}


def test_a_flip_moves_a_session_only_from_where_it_is(table: SessionTable) -> None:
    table.bind(key("s"), "a:1", 0)
    assert not table.flip(key("s"), "b:1", "c:1", 1)
    assert table.flip(key("s"), "a:1", "b:1", 1)
    assert table.endpoint_of(key("s"), 1) == "b:1"
    assert not table.flip(key("t"), "a:1", "b:1", 1)


def test_an_expired_session_is_not_flipped(table: SessionTable) -> None:
    table.bind(key("s"), "a:1", 0)
    table.bind(key("t"), "a:1", TTL_S + 1)
    assert not table.flip(key("s"), "a:1", "b:1", TTL_S + 1)


def test_nobody_lives_at_a_forgotten_host_until_bound_there_again(table: SessionTable) -> None:
    for name in "st":
        table.bind(key(name), "a:1", 0)
    table.forget_endpoint("a:1")
    assert (table.endpoint_of(key("s"), 1), table.count) == (None, 0)
    table.bind(key("s"), "a:1", 1)
    assert (table.endpoint_of(key("s"), 1), table.endpoint_of(key("t"), 1)) == ("a:1", None)
    assert table.by_endpoint() == {"a:1": 1}


@pytest.mark.parametrize("back_s", [0.5, 5.0, 1e9])
def test_after_the_clock_goes_back_sessions_live_and_expire_as_before(table: SessionTable, back_s: float) -> None:
    table.bind(key("s"), "a:1", 1e9)
    table.bind(key("t"), "b:1", 1e9)
    assert table.endpoint_of(key("s"), 1e9 - back_s) == "a:1"
    assert table.endpoint_of(key("s"), 1e9 - back_s + TTL_S - 1) == "a:1"
    assert table.endpoint_of(key("t"), 1e9 - back_s + TTL_S + 2) is None


# ---- what a store that shares the table is told ---------------------------------------------------------------------


def test_the_listener_hears_of_bindings_and_moves_with_the_address_of_before(table: SessionTable) -> None:
    told: list[tuple[bytes, str | None]] = []
    table.listener = lambda session, before: told.append((session, before))
    table.bind(key("s"), "a:1", 0)
    table.flip(key("s"), "a:1", "b:1", 0)
    table.forget_endpoint("b:1")
    table.bind(key("s"), "c:1", 0)
    table.learn(key("t"), "a:1", 0)
    assert told == [(key("s"), None), (key("s"), "a:1"), (key("s"), "b:1")]


def test_a_session_in_use_is_told_some_eight_times_a_time_to_live_and_not_more(table: SessionTable) -> None:
    told: list[bytes] = []
    table.bind(key("s"), "a:1", 1000)
    table.listener = lambda session, _: told.append(session)
    for tenth in range(10 * TTL_S):
        table.endpoint_of(key("s"), 1000 + tenth / 10)
    assert 6 <= len(told) <= 8


def test_a_session_that_was_told_is_told_once_more_when_that_may_be_lost(table: SessionTable) -> None:
    told: list[bytes] = []
    table.bind(key("s"), "a:1", 1000)
    table.listener = lambda session, _: told.append(session)
    table.endpoint_of(key("s"), 1001)
    table.notify_all_again()
    for _ in range(3):
        table.endpoint_of(key("s"), 1002)
    assert told == [key("s")]


# ---- invariants and size --------------------------------------------------------------------------------------------

STEP = st.tuples(
    st.sampled_from(["bind", "host", "flip", "learn", "forget", "expire"]),
    st.integers(0, 9),
    st.sampled_from(["a:1", "b:1", "c:1"]),
    st.floats(-1e4, 1e4) | st.floats(0, 3),
)


@given(st.lists(STEP, max_size=80))
def test_whatever_happens_the_counts_are_those_of_the_sessions_and_the_bound_holds(
    steps: list[tuple[str, int, str, float]],
) -> None:
    table = SessionTable(ttl_s=5, max_entries=6)
    now_s = 0.0
    for step, number, address, passed_s in steps:
        now_s += passed_s
        session = key(number)
        if step == "bind":
            table.bind(session, address, now_s)
            assert table.endpoint_of(session, now_s) == address
        elif step == "host":
            assert table.endpoint_of(session, now_s) == table.address_of(session)
        elif step == "flip":
            before = table.address_of(session)
            assert table.flip(session, "a:1", address, now_s) == (before == "a:1")
        elif step == "learn":
            table.learn(session, address, now_s)
        elif step == "forget":
            table.forget_endpoint(address)
        else:
            table.expire(now_s)
            found = [table.address_of(key(n)) for n in range(10)]
            assert table.by_endpoint() == Counter(where for where in found if where is not None)
        assert sum(table.by_endpoint().values()) == table.count <= 6
        assert all(count > 0 for count in table.by_endpoint().values())


def test_a_million_sessions_fit_in_a_quarter_of_a_gigabyte() -> None:
    entries = 62_500  # a dict of these is as full as one of a million
    table = SessionTable()
    tracemalloc.start()
    try:
        for number in range(entries):
            table.bind(number.to_bytes(16), f"10.0.0.{number % 64}:8000", 1000 + number // 100)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table.count == entries
    assert used / entries < 250
