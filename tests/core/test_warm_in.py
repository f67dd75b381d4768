"""An engine that joins a pool at work is neither flooded nor starved."""

from __future__ import annotations

import pytest

from fairlead.core.endpoint import Endpoint
from fairlead.core.in_flight import InFlight
from fairlead.core.pool import FEW
from fairlead.core.warm_in import ANSWERS, FIRST_REQUESTS
from tests.core.world import World


def joined(world: World, old: int) -> Endpoint:
    """`old` engines with a thousand requests each, and a new one, which is the cheapest for anything."""
    for number in range(old):
        world.endpoint(f"old{number}:1", inflight_requests=1000, decoding_requests=1000)
    new = world.endpoint("new:1")
    new.warm_in.begin()
    return new


def end(in_flight: InFlight, code: int = 200) -> None:
    in_flight.sent(in_flight.request, 0.0)
    in_flight.served(in_flight.address, code, 0.0, in_one_piece=True)
    in_flight.ended(0.0)


@pytest.mark.parametrize("old", [1, FEW + 4])  # few are looked at one by one, many are kept in a table
def test_requests_that_come_at_once_do_not_all_go_to_the_new_engine(old: int) -> None:
    world = World()
    new = joined(world, old)
    asked = [world.admit() for _ in range(6)]
    assert [each.address for each in asked[:FIRST_REQUESTS]] == [new.address] * FIRST_REQUESTS
    assert new.address not in {each.address for each in asked[FIRST_REQUESTS:]}


def test_each_answer_allows_it_more_until_it_is_one_of_the_pool() -> None:
    world = World()
    new = joined(world, 1)
    for answers in range(1, ANSWERS):
        end(world.admit())
        assert new.health.healthy
        asked = [world.admit() for _ in range(FIRST_REQUESTS * (1 + answers) + 1)]
        assert [each.address for each in asked].count(new.address) == len(asked) - 1
        for each in asked:
            each.withdraw(0.0)
    end(world.admit())
    assert new.warm_in.is_over
    assert new.health.healthy


def test_it_gets_the_next_request_as_soon_as_one_has_ended_however_it_ended() -> None:
    world = World()
    new = joined(world, 1)
    asked = [world.admit() for _ in range(FIRST_REQUESTS)]
    assert not new.health.healthy
    end(asked[0], code=500)
    assert world.admit().address == new.address
    asked[1].withdraw(0.0)
    assert world.admit().address == new.address
    assert world.admit().address == "old0:1"


def test_where_all_engines_are_new_nobody_is_refused() -> None:
    world = World()
    for number in range(2):
        world.endpoint(f"new{number}:1").warm_in.begin()
    assert {world.admit().address for _ in range(10 * FIRST_REQUESTS)} == {"new0:1", "new1:1"}


def test_an_engine_that_was_there_at_the_start_is_not_bounded() -> None:
    world = World()
    engine = world.endpoint("a:1")
    asked = [world.admit() for _ in range(10 * FIRST_REQUESTS)]
    assert engine.health.healthy
    assert len(asked) == engine.load.inflight_requests
