"""An engine evicts what it used least recently, and what an answer is computed from is in use until that ends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from tests.core.world import World, request

BLOCKS = 10  # of the engine's cache
LONG = (1, 2, 3, 4)


def asked(prefix: Sequence[int]) -> RequestFacts:
    facts = request(tokens=len(prefix) * 128, session=None)
    return msgspec.structs.replace(facts, prefix=tuple(prefix), block_tokens=128.0)


def sent(world: World, prefix: Sequence[int], now_s: float) -> InFlight:
    facts = asked(prefix)
    in_flight = world.router.admit(facts, now_s=now_s)
    assert isinstance(in_flight, InFlight)
    in_flight.sent(facts, now_s)
    in_flight.served(in_flight.address, 200, now_s, in_one_piece=False)
    return in_flight


def engine() -> World:
    world = World("fairlead")
    world.endpoint("a:1")
    world.router.index.set_capacity("a:1", BLOCKS)
    return world


def others_come_and_go(world: World, first_s: float) -> None:
    """Three prompts that together are longer than the cache."""
    for number in (1, 2, 3):
        began_s = first_s + 10.0 * number
        sent(world, [100 * number + block for block in range(4)], began_s).ended(began_s + 1)


def test_what_a_long_answer_used_until_now_is_not_what_the_engine_evicts_first() -> None:
    world = engine()
    long = sent(world, LONG, 0.0)
    others_come_and_go(world, 0.0)
    long.ended(60.0)
    assert world.router.index.match(LONG, 61.0) == {"a:1": 4}


def test_after_its_end_it_is_evicted_in_turn() -> None:
    world = engine()
    sent(world, LONG, 0.0).ended(60.0)
    others_come_and_go(world, 60.0)
    assert world.router.index.match(LONG, 100.0) == {}


def test_a_client_that_leaves_in_the_middle_ends_the_use_then() -> None:
    world = engine()
    long = sent(world, LONG, 0.0)
    others_come_and_go(world, 0.0)
    assert long.ended(60.0) is not None
    assert [blocks.used_s for blocks in world.router.index.insert(LONG, "a:1", 61.0)] == [60.0]


@pytest.mark.parametrize("others_first", [False, True])
def test_what_ends_at_an_engine_that_has_restarted_meanwhile_is_not_in_its_cache(others_first: bool) -> None:
    world = engine()
    long = sent(world, LONG, 0.0)
    world.router.pool.by_address["a:1"].generation += 1
    if others_first:
        sent(world, (7, 8), 50.0)
    long.ended(60.0)
    sent(world, (7, 8), 61.0)
    assert world.router.index.match(LONG, 62.0) == {}
