"""Replays in which sessions leave hot hosts, and their KV with them."""

from __future__ import annotations

import pytest

from fairlead.core.migration import Rules
from fairlead.errors import UserError
from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.moving import Moving, MovingSimulation
from fairlead.tools.replay.network import Link
from fairlead.tools.replay.policy_spec import read_policy_spec
from fairlead.tools.replay.workload import Workload
from tests.tools.replay.world import small_world, talk, turn, workload

RULES = Rules(hot_tokens=500, hot_ratio=1.0, cool_down_s=2.0, least_tokens=200)

# `s` and `t` start together on the two engines. `heavy` comes to the engine of `s`, the one least recently chosen, and
# has a long prompt computed there when the next turn of `s` comes.
HOT = workload(
    talk(0, turn(800, of=1), turn(816, of=1, think_ms=600), turn(832, of=1, think_ms=600), session="s"),
    talk(1, turn(64, of=2), session="t"),
    talk(500, turn(64, of=3), turn(3200, of=3, think_ms=300), session="heavy"),
)


def moved(how: str, traffic: Workload = HOT, rules: Rules = RULES) -> tuple[list[AttemptRecord], MovingSimulation]:
    answers: list[AttemptRecord] = []
    moving = Moving(how, rules, Link(setup_ms=10.0))
    world = small_world(2, 16_000)
    simulation = MovingSimulation(world, traffic, build_policy("ear", {}), moving, seed=0, sink=answers.append)
    simulation.run()
    return sorted(answers), simulation


def of(answers: list[AttemptRecord], conversation: int) -> list[AttemptRecord]:
    return [each for each in answers if each.conversation == conversation]


def test_a_pulled_session_is_served_elsewhere_from_the_kv_it_had() -> None:
    answers, simulation = moved("pull")
    assert [move.how for _, move in simulation.moves] == ["pull"]
    home, redirected, *later = of(answers, 0)
    assert redirected.endpoint != home.endpoint
    assert redirected.why == "migration"
    assert redirected.cached_tokens == 800
    assert [each.endpoint for each in later] == [redirected.endpoint]


def test_a_copied_session_stays_for_the_turn_that_caused_it_and_then_moves() -> None:
    answers, simulation = moved("copy")
    assert [move.how for _, move in simulation.moves] == ["copy"]
    home, during, after = of(answers, 0)
    assert during.endpoint == home.endpoint
    assert after.endpoint != home.endpoint
    assert after.cached_tokens >= 800
    assert simulation.counts.moves == 1


def test_a_session_that_moves_without_its_kv_computes_it_again() -> None:
    answers, _ = moved("recompute")
    redirected = of(answers, 0)[1]
    assert redirected.why == "migration"
    assert redirected.cached_tokens == 0


@pytest.mark.parametrize("how", ["pull", "copy", "recompute"])
def test_whatever_moves_each_request_ends_once_and_no_load_is_left(how: str) -> None:
    answers, simulation = moved(how)
    assert [(a.conversation, a.turn) for a in answers] == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    assert [e.load.inflight_requests for e in simulation.endpoints] == [0, 0]
    assert [engine.pool.used for engine in simulation.engines] == [0, 0]


def test_a_pool_that_is_never_hot_moves_nothing() -> None:
    answers, simulation = moved("pull", rules=Rules())
    assert not simulation.moves
    assert len({each.endpoint for each in of(answers, 0)}) == 1


def test_rules_of_moving_stand_after_a_plus() -> None:
    asked = read_policy_spec("ear+pull:hot_tokens=8000:cool_down_s=30@1s")
    assert asked.moving == Moving("pull", Rules(hot_tokens=8000, cool_down_s=30.0))
    assert (asked.name, asked.scrape_s) == ("ear", 1.0)
    assert read_policy_spec("ear").moving is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ear+push", r"\+push\" is not a way to move; write \+copy, \+pull, \+recompute"),
        ("ear+pull:hot=1", 'no rule for moving is called "hot"; known names: hot_tokens'),
        ("ear+pull:hot_tokens=many", "hot_tokens"),
    ],
)
def test_what_is_no_way_to_move_is_named(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        read_policy_spec(text)
