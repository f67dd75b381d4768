"""What users of other routers complain about most, and the default policy does not do."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from tests.core.world import World
from tests.policies.options import best, option


@pytest.mark.parametrize("rtts_ms", [(0.0, 0.0, 0.0), (0.4, 0.9, 1.3)])
def test_thirty_prompts_one_after_the_other_on_an_idle_pool_of_three_spread_evenly(rtts_ms: tuple[float, ...]) -> None:
    world = World()
    for index, rtt_ms in enumerate(rtts_ms):
        world.endpoint(f"e{index}:1", rtt_ms=rtt_ms)
    assert set(Counter(world.pick_and_end() for _ in range(30)).values()) == {10}


def test_a_burst_of_thirty_prompts_on_an_idle_pool_of_three_spreads_evenly() -> None:
    world = World()
    for letter in "abc":
        world.endpoint(f"{letter}:1")
    assert set(Counter(world.pick().addresses[0] for _ in range(30)).values()) == {10}


def _choice(holder_requests: int) -> str:
    """Between an idle endpoint and one with all of a 16,000-token prompt cached: 1.6 s of prefill."""
    holder = option("holder:1", inflight_requests=holder_requests, last_chosen=9)
    idle = option("idle:1")
    return best("fairlead", [replace(holder, uncached_tokens=0), replace(idle, uncached_tokens=16_000)])


@pytest.mark.parametrize("more_requests", [1, 2, 5, 20])
def test_a_cached_prefix_is_not_thrown_away_because_load_is_a_little_uneven(more_requests: int) -> None:
    assert _choice(more_requests) == "holder:1"


def test_a_cached_prefix_is_left_once_sharing_the_batch_costs_more_than_the_cache_saves() -> None:
    # Each request in flight slows the 100 tokens of the answer, 2 s alone, by 3 %: 26 of them by 1.56 s.
    choices = [_choice(requests) for requests in range(40)]
    assert choices == ["holder:1"] * 27 + ["idle:1"] * 13


def test_a_pool_without_idle_endpoints_makes_more_of_what_it_has_cached() -> None:
    """Computing a prompt again delays everyone there, so the queue at its holder must be longer to send it away."""

    def choice(inflight_requests: int) -> str:
        crowd = {"inflight_requests": inflight_requests, "delayed_requests": inflight_requests}
        holder = option("holder:1", cached_tokens=1000, uncached_tokens=0, pending_prefill_tokens=3000, **crowd)
        return best("fairlead", [holder, option("other:1", uncached_tokens=1000, **crowd)])

    assert choice(0) == "other:1"
    assert choice(10) == "holder:1"


def test_a_shared_prefix_does_not_pile_everything_on_one_endpoint() -> None:
    holder = option("holder:1", cached_tokens=500, inflight_requests=8, pending_prefill_tokens=4000)
    assert best("fairlead", [holder, option("idle:1")]) == "idle:1"
