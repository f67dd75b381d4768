"""Decisions for sessions whose host is hot, and what a confirmed copy makes of the router's tables."""

from __future__ import annotations

from random import Random

import pytest

from fairlead.core.facts import RequestFacts, session_key
from fairlead.core.migration import Move, Rules, Stay
from fairlead.core.pool import Endpoint, Pool
from fairlead.core.reported import EngineIdentity
from fairlead.core.router import Decision, Router
from fairlead.policies import build_policy

BLOCK_TOKENS = 128
RULES = Rules(hot_tokens=1000, least_tokens=500)


def conversation(blocks: int) -> RequestFacts:
    tokens = blocks * BLOCK_TOKENS + 10
    prefix = tuple(range(1, blocks + 1))
    return RequestFacts("m", tokens, 100, "en", 0, (), session_key(b"s"), prefix, float(BLOCK_TOKENS))


class World:
    """Three endpoints; the session has had a turn of 20 blocks at `host`, which is hot since."""

    def __init__(self, connector: str, policy: str = "ear") -> None:
        safe = EngineIdentity("0.32.0")
        endpoints = [Endpoint(a, "m", kv_connector=connector, identity=safe) for a in ("a:1", "b:1", "c:1")]
        self.router = Router(Pool(endpoints, {}), build_policy(policy, {}), fallbacks=2, rng=Random(0), rules=RULES)
        first = self.decide(20)
        first.ticket.release()
        self.host = self.router.pool.by_address[first.addresses[0]]
        self.host.pending_prefill_tokens = 50_000
        self.others = [endpoint for endpoint in endpoints if endpoint is not self.host]
        self.others[0].pending_prefill_tokens = 10

    def decide(self, blocks: int = 21) -> Decision:
        decision = self.router.decide(conversation(blocks), now_s=0.0)
        assert isinstance(decision, Decision)
        self.router.commit(conversation(blocks), decision.addresses[0], 0.0)
        return decision

    def lives_at(self) -> str | None:
        return self.router.sessions.address_of(session_key(b"s"))


@pytest.mark.parametrize("connector", ["shared", ""])
def test_a_redirected_request_goes_to_the_target_and_may_fall_back_to_its_host(connector: str) -> None:
    world = World(connector)
    decision = world.decide()
    target = world.others[1]
    assert decision.addresses == (target.address, world.host.address, world.others[0].address)
    assert decision.why == "migration"
    assert decision.ticket.endpoint is target
    assert decision.best[0].address == target.address
    assert world.lives_at() == target.address


def test_kv_that_comes_from_a_store_is_no_prefill_at_the_target() -> None:
    pulled, recomputed = World("shared"), World("")
    pulled.decide()
    recomputed.decide()
    assert pulled.others[1].pending_prefill_tokens == BLOCK_TOKENS + 10
    assert recomputed.others[1].pending_prefill_tokens == 21 * BLOCK_TOKENS + 10


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
    target.healthy = False
    assert world.router.flip(move, conversation(21), 1.0, 0.0) == "target_unhealthy"
    target.generation += 1
    assert world.router.flip(move, conversation(21), 1.0, 0.0) == "target_restarted"
    assert world.lives_at() == world.host.address
    assert move.target not in world.router.index.match(conversation(21).prefix, 0.0)


def test_a_request_that_is_withdrawn_takes_its_copy_with_it() -> None:
    world = World("mooncake")
    decision = world.router.decide(conversation(21), now_s=0.0)
    assert isinstance(decision, Decision)
    assert world.router.planner.copies(session_key(b"s"))
    world.router.withdraw(decision, 0.0)
    assert not world.router.planner.copies(session_key(b"s"))
    assert world.host.inflight_requests == 0


def test_why_a_session_stays_on_a_hot_host_is_in_its_decision() -> None:
    world = World("mooncake")
    world.decide()
    assert world.decide().migration == Stay("cooling")


def test_a_policy_that_leaves_a_hot_host_by_itself_moves_nothing() -> None:
    world = World("mooncake", policy="least_request")
    world.host.inflight_requests = 5
    decision = world.decide()
    assert decision.addresses[0] != world.host.address
    assert decision.migration is None


def test_a_draining_endpoint_is_chosen_for_nobody_new() -> None:
    world = World("mooncake")
    world.router.planner.draining = {"a:1", "b:1"}
    fresh = RequestFacts("m", 100, 100, "en", 0)
    assert {world.router.decide(fresh).addresses for _ in range(4)} == {("c:1",)}  # type: ignore[union-attr]
