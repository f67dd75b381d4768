"""Commands of an operator: what they do, what they refuse, and how far a drain has come."""

from __future__ import annotations

from random import Random

import pytest

from fairlead.core.facts import session_key
from fairlead.core.pool import Pool
from fairlead.core.reported import EngineIdentity
from fairlead.core.router import Router
from fairlead.migration.commands import Commands, RefusedError
from fairlead.policies import build_policy
from tests.core.world import carries, make_endpoint

SAFE = EngineIdentity("0.32.0")


class World:
    def __init__(self) -> None:
        self.endpoints = [
            make_endpoint("a:1", "m", kv_connector="mooncake", identity=SAFE),
            make_endpoint("b:1", "m", kv_connector="mooncake", identity=SAFE),
            make_endpoint("c:1", "other"),
        ]
        self.router = Router(Pool(self.endpoints, {}), build_policy("ear", {}), fallbacks=2, rng=Random(0))
        self.planner = self.router.planner
        self.commands = Commands(self.router)
        for name in "st":
            self.router.sessions.bind(session_key(name.encode()), "a:1", 0)


@pytest.fixture
def world() -> World:
    return World()


def test_a_session_is_ordered_to_its_target_and_the_order_can_be_taken_back(world: World) -> None:
    assert world.commands.move("s", "", "b:1", dry_run=False)["way"].startswith("its KV is copied")
    assert world.commands.session("s", "") == {"endpoint": "a:1", "waits": True, "copies": False}
    assert world.commands.cancel("s", "") == {"cancelled": True}
    assert not world.planner.commands


@pytest.mark.parametrize("ends", ["session", "target", "elsewhere"])
def test_an_order_that_cannot_be_followed_any_more_does_not_hold_its_session(world: World, ends: str) -> None:
    third = make_endpoint("d:1", "m")
    world.router.pool = Pool([*world.endpoints, third], {})
    world.commands.move("s", "", "b:1", dry_run=False)
    world.router.trim(0.0)
    assert world.commands.session("s", "")["waits"]
    if ends == "session":
        world.router.sessions.expire(2.0 * world.router.sessions.ttl_s)
    elif ends == "target":  # the router's pool is replaced when an endpoint leaves
        world.router.pool = Pool([world.endpoints[0], third], {})
    else:  # its endpoint failed, and the next request went there by itself
        world.router.sessions.bind(session_key(b"s"), "b:1", 0)
    world.router.trim(0.0)
    assert not world.planner.commands


def test_a_dry_run_orders_and_drains_nothing(world: World) -> None:
    world.commands.move("s", "", "b:1", dry_run=True)
    world.commands.drain("a:1", dry_run=True)
    assert not world.planner.commands
    assert not world.planner.draining


@pytest.mark.parametrize(
    ("session", "tenant", "to", "why"),
    [
        ("nobody", "", "b:1", "no such session"),
        ("s", "another", "b:1", "no such session"),
        ("s", "", "a:1", "already"),
        ("s", "", "c:1", "c:1 serves other"),
        ("s", "", "d:1", "not an endpoint of the pool; known addresses: a:1, b:1, c:1"),
    ],
)
def test_an_order_that_cannot_be_followed_says_why(world: World, session: str, tenant: str, to: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        world.commands.move(session, tenant, to, dry_run=False)


def test_a_target_that_is_unhealthy_or_draining_is_refused(world: World) -> None:
    world.planner.draining.add("b:1")
    with pytest.raises(RefusedError, match="cannot take it"):
        world.commands.move("s", "", "b:1", dry_run=False)


def test_a_drain_tells_what_is_left_and_where_it_can_go(world: World) -> None:
    carries(world.endpoints[0], inflight_requests=3)
    began = world.commands.drain("a:1", dry_run=False)
    assert (began["sessions"], began["inflight_requests"], began["targets"]) == (2, 3, ["b:1"])
    assert world.commands.drained("a:1")["draining"]


def test_an_endpoint_whose_sessions_have_nowhere_to_go_is_not_drained(world: World) -> None:
    world.endpoints[1].health.healthy = False
    with pytest.raises(RefusedError, match="no other healthy endpoint serves m"):
        world.commands.drain("a:1", dry_run=False)


def test_sessions_that_do_not_come_are_released_and_only_from_a_draining_endpoint(world: World) -> None:
    with pytest.raises(RefusedError, match="not draining"):
        world.commands.release("a:1")
    world.commands.drain("a:1", dry_run=False)
    assert world.commands.release("a:1")["released"] == 2
    assert world.commands.drained("a:1")["sessions"] == 0
    assert world.router.sessions.address_of(session_key(b"s")) is None


def test_an_endpoint_that_is_undrained_takes_sessions_again(world: World) -> None:
    world.commands.drain("a:1", dry_run=False)
    assert world.commands.undrain("a:1")["draining"] is False
