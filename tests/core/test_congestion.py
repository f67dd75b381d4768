"""What work costs a pool that it keeps busy: those to come, whom no queue shows yet."""

from __future__ import annotations

from math import sqrt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.congestion import Congestion, busy_share, delayed_requests
from fairlead.core.in_flight import InFlight
from fairlead.core.reported import EngineIdentity
from tests.core.world import World, carries, make_endpoint, request

WARM, COLD = "10.0.0.1:1", "10.0.0.2:1"


def mean_wait(prefill_s: float, per_s: float, servers: int) -> float:
    """Sakasegawa's, in seconds."""
    busy = per_s * prefill_s / servers
    return float(prefill_s * busy ** (sqrt(2 * (servers + 1)) - 1) / (servers * (1 - busy)))


@given(st.floats(0.01, 0.9), st.integers(1, 1000))
def test_it_is_what_a_little_more_work_adds_to_all_waits_together(busy: float, servers: int) -> None:
    per_s, more_s = busy * servers, 1e-7  # prefills of one second
    added = (mean_wait(1.0 + more_s, per_s, servers) - mean_wait(1.0 - more_s, per_s, servers)) / (2 * more_s)
    assert delayed_requests(busy, servers) == pytest.approx(added, rel=1e-4, abs=1e-6)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(1, 1000))
def test_the_busier_the_more_are_delayed(one: float, other: float, servers: int) -> None:
    less, more = sorted((one, other))
    assert 0.0 <= delayed_requests(less, servers) <= delayed_requests(more, servers)


@given(st.floats(0.0, 0.9), st.integers(1, 999))
def test_among_more_servers_one_is_sooner_free(busy: float, servers: int) -> None:
    assert delayed_requests(busy, servers + 1) <= delayed_requests(busy, servers)


def test_overload_costs_what_a_share_of_nine_tenths_does() -> None:
    assert delayed_requests(7.0, 8) == delayed_requests(0.9, 8) == pytest.approx(11.76, abs=0.01)


def test_a_pool_that_nobody_has_sent_anything_delays_nobody() -> None:
    assert Congestion([make_endpoint(WARM), make_endpoint(COLD)]).requests(100.0) == 0.0


def test_the_first_prompt_of_a_pool_does_not_make_it_a_busy_one() -> None:
    """The time that is looked at begins with it, so it says nothing of how often others come."""
    endpoint = make_endpoint(WARM)
    endpoint.prefills.takes(400.0, 100.0)
    assert Congestion([endpoint]).requests(100.3) == 0.0


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=4))
def test_engines_to_which_one_client_sends_prompts_in_turn_are_busy_for_a_share_of_all_their_time(
    pauses_s: list[float],
) -> None:
    """Each is new to it at its first prompt, and the pool is not."""
    endpoints = [make_endpoint(f"10.0.0.{number}:1") for number in range(len(pauses_s))]
    now_s = 0.0
    for endpoint, pause_s in zip(endpoints, pauses_s, strict=True):
        endpoint.prefills.takes(1e3 * pause_s, now_s)
        now_s += pause_s
    assert busy_share([endpoint.prefills for endpoint in endpoints], now_s) <= 1 / len(endpoints) + 1e-9


@given(st.floats(0.05, 1.0), st.integers(1, 8), st.integers(100, 400))
def test_once_some_prompts_came_the_share_is_that_of_the_time_which_they_take(
    share: float, engines: int, prompts: int
) -> None:
    endpoints = [make_endpoint(f"10.0.0.{number}:1") for number in range(engines)]
    for number in range(prompts):
        endpoints[number % engines].prefills.takes(100.0 * share * engines, 0.1 * number)
    assert busy_share([endpoint.prefills for endpoint in endpoints], 0.1 * prompts) == pytest.approx(share, rel=0.1)


def test_one_prompt_that_takes_longer_than_all_time_seen_leaves_the_other_engines_free() -> None:
    endpoints = [make_endpoint(f"10.0.0.{number}:1") for number in range(4)]
    for number, endpoint in enumerate(endpoints):
        endpoint.prefills.takes(1e6 if number == 0 else 1.0, 0.0)
    assert busy_share([endpoint.prefills for endpoint in endpoints], 10.0) < 0.25


def test_only_healthy_endpoints_share_the_work() -> None:
    busy, ejected = make_endpoint(WARM), make_endpoint(COLD, healthy=False)
    for _ in range(2):
        busy.prefills.takes(200.0, 99.0)
    assert Congestion([busy, ejected]).requests(100.0) == Congestion([busy]).requests(100.0) > 0.0


def test_none_of_them_healthy_is_no_reason_to_keep_a_prefix() -> None:
    assert Congestion([make_endpoint(WARM, healthy=False)]).requests(100.0) == 0.0


def test_it_is_looked_at_anew_only_a_few_times_a_second() -> None:
    endpoint = make_endpoint(WARM)
    congestion = Congestion([endpoint])
    endpoint.prefills.takes(400.0, 99.0)
    assert congestion.requests(100.0) == 0.0
    endpoint.prefills.takes(400.0, 100.0)
    assert congestion.requests(100.2) == 0.0
    assert congestion.requests(100.3) > 0.0


def chosen(busy_share: float) -> str:
    """Of one that holds half of the prompt and has some of others' to compute before it, and one that is free."""
    world = World()
    warm, cold = world.endpoint(WARM), world.endpoint(COLD)
    carries(warm, inflight_requests=1, pending_prefill_tokens=3_000)
    for second in range(100):
        for endpoint in (warm, cold):
            endpoint.prefills.takes(1e3 * busy_share, float(second))
    world.router.index.insert((1, 2), WARM, 99.0)
    asked = msgspec.structs.replace(request(tokens=4_000), prefix=(1, 2), block_tokens=1_000.0)
    in_flight = world.router.admit(asked, now_s=100.0)
    assert isinstance(in_flight, InFlight)
    return in_flight.address


def test_a_free_engine_takes_a_prompt_from_its_cache_while_the_pool_is_seldom_busy() -> None:
    assert chosen(0.1) == COLD


def test_the_prompt_waits_for_its_cache_where_every_engine_is_busy_most_of_the_time() -> None:
    assert chosen(0.85) == WARM


def test_a_busy_pool_is_no_reason_to_ask_a_model_again_that_was_wrong() -> None:
    """It has the prompt cached and its answers are short; the other is seldom right at such a prompt."""
    world = World()
    wrong, other = world.endpoint(WARM, "wrong", right=0.9), world.endpoint(COLD, "other", right=0.1)
    for second in range(100):
        for endpoint in (wrong, other):
            endpoint.prefills.takes(1e3, float(second))
    world.router.index.insert((1, 2), WARM, 99.0)
    asked = msgspec.structs.replace(request(tokens=4_000, max_output_tokens=2), prefix=(1, 2), block_tokens=2_000.0)
    again = msgspec.structs.replace(asked, attempted=("wrong",))
    addresses = []
    for each in (asked, again):
        in_flight = world.router.admit(each, now_s=100.0)
        assert isinstance(in_flight, InFlight)
        addresses.append(in_flight.address)
    assert addresses == [WARM, COLD]


@pytest.mark.parametrize("prompt_tokens", [4_000, 100_000])
def test_a_model_that_was_wrong_is_not_asked_again_however_many_wait_elsewhere(prompt_tokens: int) -> None:
    world = World()
    wrong, other = world.endpoint(WARM, "wrong", right=0.9), world.endpoint(COLD, "other", right=0.1)
    carries(wrong, inflight_requests=40, decoding_requests=40)
    carries(other, inflight_requests=40, pending_prefill_tokens=100_000)
    world.router.index.insert((1, 2), WARM, 99.0)
    again = msgspec.structs.replace(
        request(tokens=prompt_tokens, max_output_tokens=2, attempted=["wrong"]),
        prefix=(1, 2),
        block_tokens=prompt_tokens / 2,
    )
    in_flight = world.router.admit(again, now_s=100.0)
    assert isinstance(in_flight, InFlight)
    assert in_flight.address == COLD


def test_names_that_the_same_endpoints_serve_are_looked_at_once() -> None:
    """An engine may list thousands of adapters."""
    world = World()
    serves = EngineIdentity(models=("m", "legal", "medical"), adapters=("legal", "medical"))
    engine, pool = world.endpoint(WARM, identity=serves), world.router.pool
    for _ in range(2):
        engine.prefills.takes(200.0, 99.0)
    first = pool.to_come("legal", 100.0)
    engine.prefills.takes(400.0, 100.0)
    assert pool.to_come("medical", 100.1) == pool.to_come("m", 100.1) == first > 0.0
