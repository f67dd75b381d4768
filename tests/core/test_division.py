"""Engines that may do both halves of a request do what pays for all of them, which no single request sees."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.candidates import candidates
from fairlead.core.division import QUICKEST, Division, divisions
from fairlead.core.endpoint import Endpoint
from fairlead.core.in_flight import InFlight
from fairlead.core.prefill_decode import PrefillChoice, alone, prefilling_by_model
from fairlead.core.reported import EngineIdentity
from tests.core.world import World, carries, request

FIRST, SECOND, DECODER = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
LONG = 4000


def pool(transfer_ms_per_token: float = 0.05, other_role: str = "both") -> World:
    """Two endpoints that may do both halves, if nothing else is said, and one that decodes."""
    world = World()
    same: dict[str, Any] = {"kv_connector": "nixl", "identity": EngineIdentity("0.32.0")}
    for address, role in ((FIRST, other_role), (SECOND, other_role), (DECODER, "decode")):
        world.endpoint(address, role=role, transfer_ms_per_token=transfer_ms_per_token, **same)
    return world


def at(world: World, address: str) -> Endpoint:
    return world.router.pool.by_address[address]


def computes(endpoint: Endpoint, share: float, seconds: int = 120) -> None:
    """Prompts that take this share of its time."""
    for second in range(seconds):
        endpoint.prefills.takes(1e3 * share, float(second))


def choice(world: World, now_s: float = 120.0) -> PrefillChoice:
    asked = msgspec.structs.replace(request(tokens=LONG), may_split=True, prefix=(1, 2, 3, 4))
    in_flight = world.router.admit(asked, now_s=now_s)
    assert isinstance(in_flight, InFlight)
    assert in_flight.decision.prefill is not None
    return in_flight.decision.prefill


def test_the_first_prompt_at_an_engine_that_only_decodes_pays_for_what_would_follow_it() -> None:
    """Two engines are busy with prompts and hold few answers; the third decodes undisturbed."""
    world = pool()
    for address in (FIRST, SECOND):
        computes(at(world, address), 0.75)
        carries(at(world, address), inflight_requests=30, decoding_requests=30)
    ways = choice(world)
    assert ways.alone.decoder == DECODER
    # Prompts take half of the pool's time.
    assert ways.alone.decode_ms == pytest.approx(2 * ways.split.decode_ms, rel=0.1)


def test_a_crowd_at_an_engine_keeps_no_prompts_away_where_dividing_does_not_pay() -> None:
    world = pool()
    endpoint = at(world, FIRST)
    carries(endpoint, inflight_requests=40, decoding_requests=40)
    (option,) = candidates([endpoint], request(tokens=LONG), {})
    division = Division(world.router.pool.endpoints)
    division.look(0.0)
    alike, crowded = alone(option, endpoint, 0.0, division, 5.0), alone(option, endpoint, 0.0)
    assert crowded.stall_ms - alike.stall_ms == pytest.approx(0.1 * LONG * (40 - 40 / 3))


def large(**spec: Any) -> World:
    """Ten engines that compute prompts most of the time, with few answers, and two that only decode, with many."""
    world = World()
    same: dict[str, Any] = {"kv_connector": "nixl", "identity": EngineIdentity("0.32.0"), "transfer_ms_per_token": 0.01}
    for number in range(12):
        endpoint = world.endpoint(f"10.0.1.{number}:1", role="both" if number else "decode", **same, **spec)
        crowd = 10 if number >= 2 else 40
        carries(endpoint, inflight_requests=crowd, decoding_requests=crowd)
        if number >= 2:
            computes(endpoint, 0.85)
    return world


def test_those_that_decode_undisturbed_are_considered_however_many_answers_they_have() -> None:
    """By requests in flight they come last. An answer takes a fifth of the time there."""
    ways = choice(large())
    assert ways.is_split
    assert ways.split.decoder in ("10.0.1.0:1", "10.0.1.1:1")
    assert ways.split.prefiller not in ("10.0.1.0:1", "10.0.1.1:1")


def test_a_decision_shows_who_was_chosen_though_its_policy_ranked_many_before_it() -> None:
    world = large()
    asked = msgspec.structs.replace(request(tokens=LONG), may_split=True, prefix=(1, 2, 3, 4))
    in_flight = world.router.admit(asked, now_s=120.0)
    assert isinstance(in_flight, InFlight)
    decision = in_flight.decision
    assert decision.best[0].candidate.address == decision.addresses[0] == choice(large()).split.decoder
    assert len({ranked.candidate.address for ranked in decision.best}) == len(decision.best)
    terms = decision.terms(decision.best[0])
    assert terms is not None
    assert terms.total_ms() == pytest.approx(decision.best[0].score)


def test_the_quickest_are_few_and_healthy() -> None:
    world = large()
    division = next(iter(world.router.pool.divisions.values()))
    at(world, "10.0.1.0:1").health.withhold("draining")
    division.look(120.0)
    assert len(division.quickest) == QUICKEST
    assert division.quickest[0] is at(world, "10.0.1.1:1")
    assert at(world, "10.0.1.0:1") not in division.quickest


def test_engines_that_do_one_half_each_have_nothing_to_divide() -> None:
    assert not pool(other_role="prefill").router.pool.divisions


def test_a_pool_without_roles_has_nothing_to_divide() -> None:
    world = World()
    world.endpoint(FIRST)
    assert not divisions(prefilling_by_model(world.router.pool.endpoints), world.router.pool.endpoints)


@given(
    busy=st.floats(0, 0.75),
    transfer_ms=st.floats(0, 1e5),
    alone_ms=st.floats(1, 1e6),
    slowdown=st.floats(0, 1),
    answers=st.floats(0, 1e3),
)
def test_dividing_pays_where_it_is_quicker_as_a_whole(
    busy: float, transfer_ms: float, alone_ms: float, slowdown: float, answers: float
) -> None:
    division = Division(())
    division.busy_share = busy
    mixed_ms = alone_ms * (1 + slowdown * answers) / (1 - busy)
    divided_ms = alone_ms * (1 + slowdown * answers / (1 - busy)) + transfer_ms
    if mixed_ms != pytest.approx(divided_ms):
        assert division.pays(alone_ms, transfer_ms) == (divided_ms < mixed_ms)


def test_means_are_of_those_that_are_healthy_and_kept_for_some_time() -> None:
    world = pool()
    division = world.router.pool.divisions[at(world, FIRST).model]
    carries(at(world, FIRST), inflight_requests=6)
    division.look(0.0)
    assert division.present_requests == 2.0
    at(world, DECODER).health.withhold("draining")
    division.look(0.01)
    assert division.present_requests == 2.0
    division.look(1.0)
    assert division.present_requests == 3.0
