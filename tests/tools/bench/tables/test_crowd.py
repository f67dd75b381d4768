"""The decision among many endpoints and sessions: known sessions are known, and every kind of turn is measured."""

from __future__ import annotations

from fairlead.core.facts import session_key
from fairlead.tools.bench.bodies import KINDS
from fairlead.tools.bench.decision import address_of
from fairlead.tools.bench.tables.many_endpoints import TURNS, Routers, measure


def test_every_kind_of_body_and_turn_is_measured_as_often() -> None:
    cells = list(measure(0, 0.0, 12, endpoints=10, sessions=200))

    assert {(cell.kind, cell.turn) for cell in cells} == {(kind, turn) for kind in KINDS for turn in TURNS}
    assert {cell.repeats for cell in cells} == {10}
    assert all(0 < cell.median_us <= cell.p99_us for cell in cells)


def test_it_ends_at_the_most_repeats_asked_for() -> None:
    assert {cell.repeats for cell in measure(0, 60.0, 12, endpoints=10, sessions=200)} == {12}


def test_known_sessions_live_all_over_the_pool() -> None:
    crowd = Routers(0, endpoints=10, sessions=200)

    turns = [crowd.turn("known") for _ in range(10)]

    hosts = {shared.router.sessions.address_of(session_key(session)) for shared, session in turns}
    assert hosts == {address_of(number) for number in range(10)}


def test_new_sessions_are_in_neither_table_and_only_one_table_is_filled() -> None:
    crowd = Routers(0, endpoints=10, sessions=200)

    (shared, session), (empty, other) = crowd.turn("new"), crowd.turn("empty")

    assert (shared.router.sessions.count, empty.router.sessions.count) == (200, 0)
    assert session != other
    assert shared.router.sessions.address_of(session_key(session)) is None


def test_every_session_has_a_prompt_in_the_index() -> None:
    crowd = Routers(0, endpoints=10, sessions=200)

    assert crowd.full.router.index.blocks(address_of(3)) >= 20 * 24
    assert crowd.empty.router.index.blocks(address_of(3)) == 0
