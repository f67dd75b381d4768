"""Objectives narrow the choice to endpoints that should meet them."""

from __future__ import annotations

from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.candidates import candidates
from fairlead.core.endpoint import Speed
from fairlead.core.load import Load
from fairlead.core.objective import Slo
from fairlead.core.policy import Decision, Refusal
from fairlead.core.slo import expected_first_token_ms, expected_pace_ms, least_first_token_ms, meeting
from tests.core.world import World, make_endpoint, request


def asked(world: World, slo: Slo | None, **facts: object) -> Decision | Refusal:
    facts_of = msgspec.structs.replace(request(**facts), slo=slo)  # type: ignore[arg-type]
    in_flight = world.router.admit(facts_of)
    return in_flight if isinstance(in_flight, Refusal) else in_flight.decision


def fast_and_cheap() -> World:
    """`fast` is far away and crowded with decoding requests, `near` is close and slow to begin."""
    world = World()
    world.endpoint("near:1", rtt_ms=1.0, prefill_ms_per_token=1.0, decode_ms_per_token=5.0)
    world.endpoint("fast:1", rtt_ms=50.0, prefill_ms_per_token=0.1, decode_ms_per_token=30.0)
    return world


def test_the_cheapest_of_those_that_meet_it_is_chosen() -> None:
    for slo, expected in (
        (None, "near:1"),
        (Slo(500.0), "fast:1"),
        (Slo(inf, 10.0), "near:1"),
        (Slo(5000.0), "near:1"),
    ):
        decision = asked(fast_and_cheap(), slo)
        assert isinstance(decision, Decision)
        assert decision.addresses[0] == expected


def test_where_none_meets_it_the_cheapest_of_all_serves_or_it_is_refused() -> None:
    served, refused = Slo(100.0), Slo(100.0, refuses=True)
    decision = asked(fast_and_cheap(), served)
    assert isinstance(decision, Decision)
    assert decision.addresses[0] == "near:1"
    world = fast_and_cheap()
    refusal = asked(world, refused)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "slo_unmet"
    assert refusal.late_ms == pytest.approx(50.0)
    assert all(endpoint.load.inflight_requests == 0 for endpoint in world.router.pool.endpoints)


def test_a_session_leaves_an_endpoint_that_would_miss_its_objective() -> None:
    world = fast_and_cheap()
    bound = world.admit(session="s")
    bound.sent(bound.request, 0.0)
    assert bound.address == "near:1"
    decision = asked(world, Slo(600.0), session="s")
    assert isinstance(decision, Decision)
    assert decision.addresses[0] == "fast:1"


@pytest.mark.parametrize("endpoints", [2, 40])
def test_a_draining_endpoint_gets_nothing_new_though_it_alone_would_meet_it(endpoints: int) -> None:
    """It is idle, as it drains, and the others have what it would have."""
    world = World()
    world.endpoint("drains:1", rtt_ms=1.0)
    for number in range(endpoints - 1):
        world.endpoint(f"busy-{number}:1", pending_prefill_tokens=30_000, inflight_requests=5)
    world.router.planner.draining.add("drains:1")
    decision = asked(world, Slo(500.0))
    assert isinstance(decision, Decision)
    assert decision.addresses[0] != "drains:1"
    assert isinstance(asked(world, Slo(500.0, refuses=True)), Refusal)


def test_a_large_pool_is_narrowed_as_a_small_one_is() -> None:
    world = World()
    for number in range(40):
        world.endpoint(f"near-{number}:1", rtt_ms=1.0, prefill_ms_per_token=1.0, decode_ms_per_token=5.0)
    world.endpoint("fast:1", rtt_ms=50.0, prefill_ms_per_token=0.1, decode_ms_per_token=30.0)
    decision = asked(world, Slo(500.0))
    assert isinstance(decision, Decision)
    assert (decision.addresses[0], decision.considered) == ("fast:1", 1)


def test_time_that_was_waited_is_gone() -> None:
    assert Slo(500.0, 20.0, refuses=True).after(200.0) == Slo(300.0, 20.0, refuses=True)


@given(
    pending=st.integers(0, 100_000),
    strangers=st.integers(0, 5_000),
    decoding=st.integers(0, 100),
    cached=st.integers(0, 2_000),
    growth=st.sampled_from([0.0, 6e-5]),
    ttft_ms=st.floats(0, 20_000),
    tpot_ms=st.floats(0, 100),
)
def test_an_endpoint_meets_it_exactly_if_its_expected_times_do(
    pending: int, strangers: int, decoding: int, cached: int, growth: float, ttft_ms: float, tpot_ms: float
) -> None:
    endpoint = make_endpoint("a:1", pending_prefill_tokens=pending, inflight_requests=decoding, rtt_ms=3.0)
    endpoint.strangers = Load(1, pending_prefill_tokens=strangers, pending_attended_tokens=strangers**2 // 2)
    endpoint.speed = Speed(0.1, 20.0, prefill_growth=growth)
    facts = request()
    held = {"a:1": min(cached, facts.tokens)}
    (candidate,) = candidates([endpoint], facts, held)
    first_ms, pace_ms = expected_first_token_ms(candidate), expected_pace_ms(candidate)
    met = meeting(Slo(ttft_ms, tpot_ms), [endpoint], facts, held)
    assert bool(met.endpoints) == (first_ms <= ttft_ms and pace_ms <= tpot_ms)
    assert met.late_ms == pytest.approx(max(0.0, first_ms - ttft_ms))
    assert least_first_token_ms([endpoint], facts, held) <= first_ms


def test_requests_that_no_sidecar_sent_are_waited_for_too() -> None:
    endpoint = make_endpoint("a:1")
    endpoint.strangers = Load(2, pending_prefill_tokens=500)
    (candidate,) = candidates([endpoint], facts := request(), {})
    (alone,) = candidates([make_endpoint("a:1")], facts, {})
    waited_ms = expected_first_token_ms(candidate) - expected_first_token_ms(alone)
    assert waited_ms == pytest.approx(500 * alone.prefill_ms_per_token)
