"""A decision: who may be chosen, who is, and what is taken."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.core.pool import ANY_MODEL, Pool
from tests.core.world import World, make_endpoint, request


def test_a_request_for_a_model_goes_to_an_endpoint_that_serves_it() -> None:
    world = World()
    world.endpoint("a:1", "small")
    world.endpoint("b:1", "large")
    assert world.pick("large").addresses == ("b:1",)


def test_a_request_for_an_unknown_model_is_refused() -> None:
    world = World()
    world.endpoint("a:1", "small")
    assert world.router.admit(request("huge")) == Refusal("unknown_model")


def test_an_unhealthy_endpoint_is_not_chosen() -> None:
    world = World()
    world.endpoint("a:1", healthy=False)
    world.endpoint("b:1", inflight_requests=50, pending_prefill_tokens=10**6)
    assert world.pick().addresses == ("b:1",)


def test_with_no_healthy_endpoint_the_request_is_refused() -> None:
    world = World()
    world.endpoint("a:1", healthy=False)
    assert world.router.admit(request()) == Refusal("no_endpoint")


def test_a_prompt_longer_than_a_model_takes_goes_to_one_that_takes_it() -> None:
    world = World()
    world.endpoint("a:1", "short", max_model_len=4096)
    world.endpoint("b:1", "long", max_model_len=131072, prefill_ms_per_token=5.0)
    assert world.pick(tokens=8000).model == "long"


def test_a_prompt_longer_than_every_model_takes_is_left_to_the_engine_to_judge() -> None:
    world = World()
    world.endpoint("a:1", max_model_len=4096)
    assert world.pick(tokens=8000).addresses == ("a:1",)


def test_load_counts_from_the_pick_so_a_burst_spreads() -> None:
    world = World()
    for name in "abcd":
        world.endpoint(f"{name}:1")
    assert {world.pick().addresses[0] for _ in range(4)} == {"a:1", "b:1", "c:1", "d:1"}


def test_thirty_prompts_on_an_idle_pool_of_three_spread_over_all_three() -> None:
    world = World()
    for index, name in enumerate("abc"):
        world.endpoint(f"{name}:1", rtt_ms=0.5 + 0.3 * index)  # as far apart as probes on one network measure
    chosen = [world.pick_and_end() for _ in range(30)]
    assert {address: chosen.count(address) for address in chosen} == {"a:1": 10, "b:1": 10, "c:1": 10}


def test_fallbacks_are_of_the_chosen_model_and_at_most_as_many_as_configured() -> None:
    world = World()
    for name in "abcd":
        world.endpoint(f"{name}:1", "small")
    world.endpoint("e:1", "large", right=0.1)
    decision = world.pick()
    assert len(decision.addresses) == 3
    assert "e:1" not in decision.addresses


def test_a_decision_can_be_explained() -> None:
    world = World()
    world.endpoint("a:1", "small", right=0.5, prefill_ms_per_token=0.1, decode_ms_per_token=10.0, rtt_ms=3.0)
    decision = world.pick(tokens=1000, max_output_tokens=10)
    (choice,) = decision.best
    terms = decision.terms(choice)
    assert terms is not None
    assert terms.total_ms() == pytest.approx((3 + 100 + 100) / 0.5)
    assert choice.score == pytest.approx(terms.total_ms())


def test_a_request_without_a_model_goes_to_sglang_where_the_pool_has_it() -> None:
    pool = Pool([make_endpoint("a:1", "m"), make_endpoint("b:1", "m", engine="sglang")], {})
    assert [endpoint.address for endpoint in pool.available(ANY_MODEL)] == ["b:1"]


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 50), st.integers(0, 10**6), st.floats(0.01, 1)), min_size=1, max_size=12
    ),
    st.sampled_from(["fairlead", "laar", "least_request", "round_robin", "random", "power_of_two", "session_affinity"]),
    st.integers(0, 5),
)
def test_whatever_the_policy_a_healthy_endpoint_is_chosen_and_its_load_is_given_back(
    endpoints: list[tuple[bool, int, int, float]], policy: str, attempts: int
) -> None:
    world = World(policy)
    for index, (healthy, inflight, pending, right) in enumerate(endpoints):
        world.endpoint(
            f"e{index}:1", healthy=healthy, inflight_requests=inflight, pending_prefill_tokens=pending, right=right
        )
    before = [e.load.inflight_requests for e in world.router.pool.endpoints]
    in_flight = world.router.admit(request(attempted=["m"] * attempts, session="s"))
    if not any(healthy for healthy, *_ in endpoints):
        assert in_flight == Refusal("no_endpoint")
        return
    assert isinstance(in_flight, InFlight)
    assert all(world.router.pool.by_address[address].health.healthy for address in in_flight.decision.addresses)
    in_flight.ended(0.0)
    assert [e.load.inflight_requests for e in world.router.pool.endpoints] == before


def test_the_form_of_a_prompt_is_chosen_together_with_the_endpoint() -> None:
    """Each endpoint holds the prompt in another order; the load decides, and its form goes with it."""
    world = World()
    world.endpoint("a:1", pending_prefill_tokens=10**6, inflight_requests=9)
    world.endpoint("b:1")
    world.router.index.insert((1, 2, 3), "a:1", 0.0)
    world.router.index.insert((4, 5, 6), "b:1", 0.0)
    asked = msgspec.structs.replace(request(tokens=4096), prefix=(7, 8, 9), block_tokens=128.0)
    in_flight = world.router.admit(asked, others=[(1, 2, 3), (4, 5, 6)])
    assert isinstance(in_flight, InFlight)
    decision = in_flight.decision
    assert (decision.addresses[0], decision.form, decision.form_tokens) == ("b:1", 2, 3 * 128)


def test_a_prompt_keeps_its_own_form_where_no_other_has_more_cached() -> None:
    world = World()
    world.endpoint("a:1")
    world.router.index.insert((1, 2, 3), "a:1", 0.0)
    asked = msgspec.structs.replace(request(tokens=4096), prefix=(1, 2, 3), block_tokens=128.0)
    in_flight = world.router.admit(asked, others=[(1, 2, 4), (5, 6, 7)])
    assert isinstance(in_flight, InFlight)
    decision = in_flight.decision
    assert (decision.form, decision.form_tokens, decision.cached_tokens) == (0, 0, 3 * 128)
