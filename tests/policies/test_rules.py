"""Each policy against its published rule."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.capability import Capability
from fairlead.policies import build_policy, policy_names
from tests.core.world import World, always, carries

MODEL = st.tuples(st.floats(0.01, 2), st.integers(0, 10**6), st.floats(0.02, 1), st.integers(0, 3))


@given(st.lists(MODEL, min_size=1, max_size=8), st.integers(1, 10**6))
def test_laar_picks_the_least_latency_over_success(models: list[tuple[float, int, float, int]], tokens: int) -> None:
    world = World("laar", retry_penalty=50.0)
    attempted = []
    costs = {}
    for index, (c_ms, queued, right, attempts) in enumerate(models):
        name = f"m{index}"
        world.endpoint(f"{name}:1", name, prefill_ms_per_token=c_ms, inflight_prompt_tokens=queued, right=right)
        attempted += [name] * attempts
        costs[f"{name}:1"] = c_ms * (tokens + 0.7 * queued) / right * 50.0**attempts
    decision = world.pick(tokens=tokens, attempted=attempted)
    assert costs[decision.addresses[0]] == pytest.approx(min(costs.values()))


@pytest.mark.parametrize("policy", ["laar", "fairlead"])
def test_a_retry_goes_to_another_model(policy: str) -> None:
    world = World(policy)
    world.endpoint("a:1", "quick", prefill_ms_per_token=0.01)
    world.endpoint("b:1", "slow", prefill_ms_per_token=1.0, right=0.2)
    assert [world.pick_and_end(attempted=attempted) for attempted in ([], ["quick"])] == ["a:1", "b:1"]


@pytest.mark.parametrize("policy", ["laar", "fairlead"])
def test_after_every_model_was_tried_the_best_one_is_asked_again(policy: str) -> None:
    world = World(policy)
    world.endpoint("a:1", "quick", prefill_ms_per_token=0.01)
    world.endpoint("b:1", "slow", prefill_ms_per_token=1.0)
    assert world.pick_and_end(attempted=["slow", "quick"]) == "a:1"
    assert world.pick_and_end(attempted=["slow", "quick", "quick"]) == "b:1"


def test_attempted_models_that_do_not_exist_change_nothing() -> None:
    world = World("laar")
    world.endpoint("a:1")
    assert world.pick_and_end(attempted=["no such model"] * 20) == "a:1"


def test_a_more_accurate_model_may_be_worth_its_slowness() -> None:
    world = World("laar")
    world.endpoint("a:1", "quick", prefill_ms_per_token=0.1, right=0.2)
    world.endpoint("b:1", "right", prefill_ms_per_token=0.3, right=0.9)
    assert world.pick().model == "right"


def test_the_best_model_changes_with_language_and_length() -> None:
    world = World("laar")
    world.endpoint("a:1", "english", capability=Capability({**always(0.1).table, "en": (0.9,) * 6 + (0.05,)}))
    world.endpoint("b:1", "japanese", capability=Capability({**always(0.1).table, "ja": (0.9,) * 7}))
    assert world.pick(language="en", bucket=0).model == "english"
    assert world.pick(language="ja", bucket=0).model == "japanese"
    assert world.pick(language="en", bucket=6).model == "japanese"


def test_fairlead_leaves_a_near_endpoint_for_an_idle_one_when_the_wait_costs_more_than_the_way() -> None:
    world = World("fairlead")
    near = world.endpoint("a:1", rtt_ms=1.0)
    world.endpoint("b:1", rtt_ms=150.0)
    assert world.pick_and_end() == "a:1"
    carries(near, pending_prefill_tokens=5000)
    assert world.pick_and_end() == "b:1"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=10))
def test_least_request_picks_an_endpoint_with_the_fewest(loads: list[int]) -> None:
    world = World("least_request")
    for index, load in enumerate(loads):
        world.endpoint(f"e{index}:1", inflight_requests=load)
    chosen = world.pick().addresses[0]
    assert loads[int(chosen[1:-2])] == min(loads)


def test_round_robin_takes_each_in_turn() -> None:
    world = World("round_robin")
    for name in "cab":
        world.endpoint(f"{name}:1")
    assert [world.pick().addresses[0] for _ in range(6)] == ["a:1", "b:1", "c:1"] * 2


def test_random_takes_each_about_as_often() -> None:
    world = World("random")
    for name in "ab":
        world.endpoint(f"{name}:1")
    counts = Counter(world.pick().addresses[0] for _ in range(400))
    assert min(counts.values()) > 140  # six standard deviations below 200


def test_power_of_two_never_takes_the_busiest() -> None:
    world = World("power_of_two")
    for name, load in (("a", 1), ("b", 2), ("c", 100)):
        world.endpoint(f"{name}:1", inflight_requests=load)
    assert "c:1" not in {world.pick_and_end() for _ in range(100)}


def test_session_affinity_keeps_a_session_whatever_the_load() -> None:
    world = World("session_affinity")
    for name in "abc":
        world.endpoint(f"{name}:1")
    assert len({world.pick(session="s").addresses[0] for _ in range(20)}) == 1


def test_session_affinity_moves_only_the_sessions_of_an_endpoint_that_goes() -> None:
    world = World("session_affinity")
    for name in "abcd":
        world.endpoint(f"{name}:1")
    before = {n: world.pick(session=f"s{n}").addresses[0] for n in range(60)}
    world.router.pool.by_address["b:1"].health.healthy = False
    after = {n: world.pick(session=f"s{n}").addresses[0] for n in range(60)}
    assert all(after[n] == home for n, home in before.items() if home != "b:1")
    assert len({after[n] for n, home in before.items() if home == "b:1"}) > 1


def test_session_affinity_without_a_session_spreads() -> None:
    world = World("session_affinity")
    for name in "abc":
        world.endpoint(f"{name}:1")
    assert len({world.pick().addresses[0] for _ in range(50)}) == 3


def test_the_control_excludes_tried_models_and_balances_the_rest() -> None:
    world = World("load_aware_exclude_tried")
    world.endpoint("a:1", "tried")
    world.endpoint("b:1", "busy", inflight_requests=3)
    world.endpoint("c:1", "idle", inflight_requests=2)
    assert world.pick(attempted=["tried"]).model == "idle"


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_ranks_every_candidate_once(name: str) -> None:
    world = World(name)
    for letter in "abcde":
        world.endpoint(f"{letter}:1")
    world.pick(session="s")
    assert world.router.policy_failures == 0


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_ranks_a_lone_endpoint_for_an_empty_prompt(name: str) -> None:
    world = World(name)
    world.endpoint("a:1")
    assert world.pick(tokens=0).addresses == ("a:1",)
    assert world.router.policy_failures == 0


def test_an_unknown_policy_is_answered_with_the_near_one() -> None:
    with pytest.raises(ValueError, match='did you mean "laar"'):
        build_policy("lar", {})


@pytest.mark.parametrize("parameters", [{"alfa": 1.0}, {"alpha": "much"}, {"alpha": -1.0}])
def test_a_wrong_parameter_is_answered_with_the_known_ones(parameters: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"its parameters are: alpha=0\.7, retry_penalty=1000\.0"):
        build_policy("laar", parameters)
