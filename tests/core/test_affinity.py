"""Prefixes and sessions in a decision, as the default policy weighs them."""

from __future__ import annotations

import pytest

from fairlead.core.facts import RequestFacts, session_key
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Decision
from tests.core.world import World, carries

BLOCK_TOKENS = 128.0


def conversation(blocks: int, *, session: str | None = "s", attempted: tuple[str, ...] = ()) -> RequestFacts:
    """A request whose prompt is the first `blocks` of one long conversation."""
    return RequestFacts(
        model="any",
        tokens=int(blocks * BLOCK_TOKENS) + 10,
        max_output_tokens=100,
        language="en",
        bucket=0,
        attempted=attempted,
        session=session_key(session.encode()) if session else None,
        prefix=tuple(range(1, blocks + 1)),
        block_tokens=BLOCK_TOKENS,
    )


def turn(world: World, request: RequestFacts, now_s: float = 0.0) -> Decision:
    in_flight = world.router.admit(request, now_s=now_s)
    assert isinstance(in_flight, InFlight)
    in_flight.sent(request, now_s)
    in_flight.ended(now_s)
    return in_flight.decision


@pytest.fixture
def world() -> World:
    world = World()
    for name in "abc":
        world.endpoint(f"{name}:1")
    return world


def test_the_next_turn_goes_where_the_prefix_is_cached(world: World) -> None:
    first = turn(world, conversation(8))
    second = turn(world, conversation(9))
    assert second.addresses[0] == first.addresses[0]
    assert (first.why, second.why) == ("cost", "affinity")
    assert second.cached_tokens == 8 * BLOCK_TOKENS


def test_a_shared_prefix_is_followed_without_a_session(world: World) -> None:
    first = turn(world, conversation(8, session=None))
    assert turn(world, conversation(9, session="other")).addresses[0] == first.addresses[0]


def test_only_uncached_tokens_wait_for_prefill(world: World) -> None:
    home = turn(world, conversation(8)).addresses[0]
    world.router.admit(conversation(9))
    assert world.router.pool.by_address[home].load.pending_prefill_tokens == BLOCK_TOKENS + 10


def test_a_conversation_leaves_a_host_whose_queue_costs_more_than_its_prefix(world: World) -> None:
    home = turn(world, conversation(8)).addresses[0]
    carries(world.router.pool.by_address[home], pending_prefill_tokens=100_000)
    assert turn(world, conversation(9)).addresses[0] != home


def test_a_small_imbalance_does_not_throw_a_long_prefix_away(world: World) -> None:
    home = turn(world, conversation(100)).addresses[0]
    carries(world.router.pool.by_address[home], inflight_requests=3)
    assert turn(world, conversation(101)).addresses[0] == home


def test_what_an_engine_had_cached_before_its_restart_counts_no_more(world: World) -> None:
    home = turn(world, conversation(8)).addresses[0]
    world.router.pool.by_address[home].generation += 1
    assert turn(world, conversation(9)).cached_tokens == 0


def test_a_host_whose_model_was_wrong_is_not_the_host_of_the_retry() -> None:
    world = World("ear")
    world.endpoint("a:1", "small")
    world.endpoint("b:1", "large", pending_prefill_tokens=10)
    assert turn(world, conversation(8)).model == "small"
    retry = turn(world, conversation(8, attempted=("small",)))
    assert retry.why == "cost"


def test_a_session_is_bound_again_when_its_host_is_ejected() -> None:
    world = World("ear")
    home = world.endpoint("a:1")
    world.endpoint("b:1", pending_prefill_tokens=10)
    turn(world, conversation(8))
    home.health.healthy = False
    turn(world, conversation(9))
    home.health.healthy = True
    assert turn(world, conversation(10)).addresses[0] == "b:1"


def test_sessions_of_two_tenants_are_two() -> None:
    assert session_key(b"s", b"one") != session_key(b"s", b"two") != session_key(b"s")
