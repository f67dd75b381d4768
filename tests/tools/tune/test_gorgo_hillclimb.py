"""`gorgo_hillclimb`: a rule whose tuner, kept by the router, replaces it by itself with other weights."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from fairlead.core.candidates import Candidate
from fairlead.core.policy import Outcome, Tuner
from fairlead.policies import build_policy
from fairlead.tools.tune.gorgo_hillclimb import BOX, GorgoHillclimb
from tests.core.world import World
from tests.policies.options import best, pools


def weights(policy: object) -> dict[str, float]:
    return {name: getattr(policy, name) for name in BOX}


def ask(world: World, first_token_ms: float | None) -> None:
    in_flight = world.admit()
    in_flight.withdraw(0.0)
    decision = in_flight.decision
    world.router.feedback(decision, Outcome(200, 1000.0, first_token_ms), 0.0)


@pytest.fixture
def world() -> World:
    world = World("gorgo_hillclimb", window=4, report_every=2)
    world.endpoint("a:1")
    return world


@settings(deadline=None)
@given(pools())
def test_it_chooses_as_gorgo_with_the_weights_in_force(options: list[Candidate]) -> None:
    assert best("gorgo_hillclimb", options) == best("gorgo", options, rtt_weight=0.5, queue_weight=0.1)


def test_after_a_window_of_first_tokens_other_weights_are_in_force(world: World) -> None:
    start = weights(world.router.policy)
    for _ in range(3):
        ask(world, 100.0)
    assert weights(world.router.policy) == start
    ask(world, 100.0)
    found = weights(world.router.policy)
    assert found != start
    assert all(low <= found[name] <= high for name, (low, high) in BOX.items())


def test_an_answer_whose_first_token_was_not_seen_teaches_nothing(world: World) -> None:
    start = weights(world.router.policy)
    for _ in range(20):
        ask(world, None)
    assert weights(world.router.policy) == start


def test_what_is_not_a_weight_stays_as_configured(world: World) -> None:
    for _ in range(20):
        ask(world, 100.0)
    rule = world.router.policy
    assert isinstance(rule, GorgoHillclimb)
    assert (rule.window, rule.report_every) == (4, 2)


def test_a_policy_put_in_place_of_it_is_not_tuned(world: World) -> None:
    world.router.use(build_policy("gorgo", {}))
    before = world.router.policy
    for _ in range(20):
        ask(world, 100.0)
    assert world.router.policy is before


def test_a_tuner_that_raises_leaves_the_weights_and_is_counted(world: World) -> None:
    class Broken:
        def observe(self, *_: object) -> None:
            raise ZeroDivisionError("on purpose")

    broken: Tuner = Broken()
    world.router.use(world.router.policy, broken)
    ask(world, 100.0)
    assert world.router.policy_failures == 1
    assert "on purpose" in world.router.last_policy_failure


def test_weights_outside_the_published_box_are_refused() -> None:
    with pytest.raises(ValueError, match="rtt_weight"):
        build_policy("gorgo_hillclimb", {"rtt_weight": 7.0})


def test_decisions_are_numbered_in_their_order(world: World) -> None:
    first, second = world.pick(), world.pick()
    assert (first.number, second.number) == (1, 2)
    assert msgspec.structs.asdict(first)["number"] == 1
