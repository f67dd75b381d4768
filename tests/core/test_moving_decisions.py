"""Decisions for sessions whose host is hot, and what a confirmed copy makes of the router's tables."""

from __future__ import annotations

from random import Random

import pytest

from fairlead.core.facts import RequestFacts, session_key
from fairlead.core.in_flight import InFlight
from fairlead.core.migration import Rules
from fairlead.core.moves import Move, Stay
from fairlead.core.policy import Decision
from fairlead.core.pool import Pool
from fairlead.core.reported import EngineIdentity
from fairlead.core.router import Router
from fairlead.policies import build_policy
from tests.core.world import carries, make_endpoint

BLOCK_TOKENS = 128
RULES = Rules(hot_tokens=1000, least_tokens=500)


def conversation(blocks: int, agent: int = 1) -> RequestFacts:
    """A prompt of the session; its agents share the first two blocks."""
    tokens = blocks * BLOCK_TOKENS + 10
    prefix = (1, 2, *range(1000 * agent, 1000 * agent + blocks - 2))
    return RequestFacts("m", tokens, 100, "en", 0, (), session_key(b"s"), prefix, float(BLOCK_TOKENS))


class World:
    """Three endpoints; the session has had a turn of 20 blocks at `host`, which is hot since."""

    def __init__(self, connector: str, policy: str = "ear") -> None:
        safe = EngineIdentity("0.32.0")
        endpoints = [make_endpoint(a, "m", kv_connector=connector, identity=safe) for a in ("a:1", "b:1", "c:1")]
        self.router = Router(Pool(endpoints, {}), build_policy(policy, {}), fallbacks=2, rng=Random(0), rules=RULES)
        first = self.turn(20)
        first.ended(0.0)
        self.host = self.router.pool.by_address[first.address]
        carries(self.host, pending_prefill_tokens=50_000)
        self.others = [endpoint for endpoint in endpoints if endpoint is not self.host]
        carries(self.others[0], pending_prefill_tokens=10)

    def turn(self, blocks: int = 21, agent: int = 1, now_s: float = 0.0) -> InFlight:
        request = conversation(blocks, agent)
        in_flight = self.router.admit(request, now_s=now_s)
        assert isinstance(in_flight, InFlight)
        in_flight.sent(request, now_s)
        in_flight.claim_copy()
        return in_flight

    def decide(self, blocks: int = 21, agent: int = 1, now_s: float = 0.0) -> Decision:
        return self.turn(blocks, agent, now_s).decision

    def lives_at(self) -> str | None:
        return self.router.sessions.address_of(session_key(b"s"))


@pytest.mark.parametrize("connector", ["shared", ""])
def test_a_redirected_request_goes_to_the_target_and_may_fall_back_to_its_host(connector: str) -> None:
    world = World(connector)
    in_flight = world.turn()
    decision, target = in_flight.decision, world.others[1]
    assert decision.addresses == (target.address, world.host.address, world.others[0].address)
    assert decision.why == "migration"
    assert in_flight.address == target.address
    assert decision.best[0].candidate.address == target.address
    assert world.lives_at() == target.address


def test_kv_that_comes_from_a_store_is_no_prefill_at_the_target() -> None:
    pulled, recomputed = World("shared"), World("")
    pulled.decide()
    recomputed.decide()
    assert pulled.others[1].load.pending_prefill_tokens == BLOCK_TOKENS + 10
    assert recomputed.others[1].load.pending_prefill_tokens == 21 * BLOCK_TOKENS + 10


def test_a_copied_session_is_served_by_its_host_until_the_copy_is_confirmed() -> None:
    world = World("mooncake")
    decision = world.decide()
    move = decision.migration
    assert isinstance(move, Move)
    assert (decision.addresses[0], decision.why) == (world.host.address, "affinity")
    assert world.router.flip(move, conversation(21), 0.5, 0.0) is None
    world.router.planner.ended(move, 0.0, "done")
    assert world.lives_at() == world.others[1].address
    assert world.router.index.match(conversation(21).prefix, 0.0)[world.others[1].address] == 10


def test_a_copy_into_an_engine_that_restarted_or_is_ejected_changes_nothing() -> None:
    world = World("mooncake")
    move = world.decide().migration
    assert isinstance(move, Move)
    target = world.router.pool.by_address[move.target]
    target.health.healthy = False
    assert world.router.flip(move, conversation(21), 1.0, 0.0) == "target_unhealthy"
    target.generation += 1
    assert world.router.flip(move, conversation(21), 1.0, 0.0) == "target_restarted"
    assert world.lives_at() == world.host.address
    assert move.target not in world.router.index.match(conversation(21).prefix, 0.0)


def test_a_request_that_is_withdrawn_takes_its_copy_with_it() -> None:
    world = World("mooncake")
    in_flight = world.router.admit(conversation(21), now_s=0.0)
    assert isinstance(in_flight, InFlight)
    assert world.router.planner.copies(session_key(b"s"))
    in_flight.withdraw(0.0)
    assert not world.router.planner.copies(session_key(b"s"))
    assert world.host.load.inflight_requests == 0


def test_why_a_session_stays_on_a_hot_host_is_in_its_decision() -> None:
    world = World("mooncake")
    world.decide()
    assert world.decide().migration == Stay("cooling")


class Shared(World):
    """A second agent with the session's id has had a turn of 20 blocks at the host when the first is moved away."""

    def __init__(self, connector: str) -> None:
        super().__init__(connector)
        carries(self.host, pending_prefill_tokens=0)
        self.turn(20, agent=2).ended(0.0)
        carries(self.host, pending_prefill_tokens=50_000)
        move = self.decide(21).migration
        assert isinstance(move, Move)
        if not move.redirects:
            self.router.flip(move, conversation(21), 1.0, 0.0)
            self.router.planner.ended(move, 0.0, "done")
        self.move = move
        assert self.lives_at() == move.target


@pytest.mark.parametrize("connector", ["shared", "mooncake"])
def test_agents_that_share_an_id_stay_where_their_contexts_are_when_one_of_them_moves(connector: str) -> None:
    world = Shared(connector)
    stayed = world.decide(21, agent=2)
    assert (stayed.addresses[0], stayed.why, stayed.migration) == (world.host.address, "affinity", Stay("cooling"))
    assert world.decide(22).addresses[0] == world.lives_at() == world.move.target
    assert world.decide(3, agent=3).addresses[0] == world.move.target


@pytest.mark.parametrize("connector", ["shared", "mooncake"])
def test_an_agent_that_stayed_moves_after_the_cool_down_and_leaves_the_first_where_it_is(connector: str) -> None:
    world = Shared(connector)
    world.turn(22).ended(0.0)
    third = next(e for e in world.others if e.address != world.move.target)
    carries(world.router.pool.by_address[world.move.target], pending_prefill_tokens=1000)
    move = world.decide(21, agent=2, now_s=62.0).migration
    assert isinstance(move, Move)
    assert (move.source, move.bound, move.target) == (world.host.address, world.move.target, third.address)
    if not move.redirects:
        assert world.router.flip(move, conversation(21, agent=2), 1.0, 62.0) is None
        world.router.planner.ended(move, 62.0, "done")
    assert world.decide(22, agent=2, now_s=63.0).addresses[0] == world.lives_at() == third.address
    assert world.decide(23, agent=1, now_s=63.0).addresses[0] == world.move.target


def test_where_another_sidecar_has_moved_the_session_all_its_agents_go() -> None:
    world = Shared("shared")
    third = next(e for e in world.others if e.address != world.move.target)
    world.router.sessions.learn(session_key(b"s"), third.address, 1.0)
    assert {world.decide(22, agent=agent).addresses[0] for agent in (1, 2)} == {third.address}


def test_no_agent_goes_back_to_a_draining_endpoint_that_its_session_has_left() -> None:
    world = Shared("mooncake")
    world.router.planner.draining.add(world.host.address)
    assert world.decide(21, agent=2).addresses[0] == world.move.target


def test_an_agent_whose_context_is_nowhere_goes_where_its_session_lives() -> None:
    world = Shared("shared")
    world.router.index.forget(world.host.address)
    assert world.decide(21, agent=2).addresses[0] == world.move.target


def test_a_policy_that_leaves_a_hot_host_by_itself_moves_nothing() -> None:
    world = World("mooncake", policy="least_request")
    carries(world.host, inflight_requests=5)
    decision = world.decide()
    assert decision.addresses[0] != world.host.address
    assert decision.migration is None


def test_a_draining_endpoint_is_chosen_for_nobody_new() -> None:
    world = World("mooncake")
    world.router.planner.draining = {"a:1", "b:1"}
    fresh = RequestFacts("m", 100, 100, "en", 0)
    assert {world.router.admit(fresh).decision.addresses for _ in range(4)} == {("c:1",)}  # type: ignore[union-attr]
