"""prefix_cache, cache_aware, llm_d, llm_d_affinity, llm_d_load_aware and dynamo_kv against their published rules."""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import mean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.candidates import Candidate
from fairlead.policies import build_policy
from tests.core.world import World
from tests.policies.options import TOKENS, best, first, option, pools, prompt


@given(pools())
def test_prefix_cache_takes_the_longest_match_among_those_not_too_busy(options: list[Candidate]) -> None:
    counts = [c.inflight_requests for c in options]
    unbalanced = max(counts) - min(counts) > 8
    allowed = [c for c in options if c.inflight_requests == min(counts)] if unbalanced else options
    limit = mean(counts) + pstdev(counts) + 1e-9
    matched = [c for c in allowed if c.cached_tokens > 0 and c.inflight_requests <= limit]
    chosen = first("prefix_cache", options)
    if matched:
        published = min((-c.cached_tokens, c.inflight_requests) for c in matched)
        assert (-chosen.cached_tokens, chosen.inflight_requests) == published
    else:
        assert chosen.inflight_requests == min(counts)


def test_prefix_cache_gives_up_a_match_that_is_one_standard_deviation_busier_than_the_mean() -> None:
    def pool(busy: int) -> list[Candidate]:
        return [option("a:1", cached_tokens=900, inflight_requests=busy), *(option(f"{x}:1") for x in "bcd")]

    assert best("prefix_cache", pool(0)) == "a:1"
    assert best("prefix_cache", pool(8)) != "a:1"  # mean 2, deviation 3.5
    assert best("prefix_cache", pool(8), deviations=2.0) == "a:1"
    assert best("prefix_cache", pool(9), deviations=2.0) != "a:1"  # more than 8 apart


def test_prefix_cache_prefers_the_match_with_fewer_requests_among_equal_ones() -> None:
    options = [
        option("a:1", cached_tokens=500, inflight_requests=3),
        option("b:1", cached_tokens=500, inflight_requests=2),
        option("c:1", inflight_requests=6),
    ]
    rule = build_policy("prefix_cache", {})
    assert {rule.rank(prompt(), options, Random(seed)).order[0].candidate.address for seed in range(20)} == {"b:1"}


@pytest.mark.parametrize("policy", ["prefix_cache", "llm_d_load_aware"])
def test_ties_go_at_random(policy: str) -> None:
    rule, rng = build_policy(policy, {}), Random(1)
    options = [option(f"{letter}:1", last_chosen=turn) for turn, letter in enumerate("abcd")]
    counts = Counter(rule.rank(prompt(), options, rng).order[0].candidate.address for _ in range(400))
    assert set(counts) == {"a:1", "b:1", "c:1", "d:1"}
    assert min(counts.values()) > 48  # six standard deviations below 100


SGLANG_LIBRARY: dict[str, Any] = {"cache_threshold": 0.5, "balance_abs_threshold": 32, "balance_rel_threshold": 1.1}


@pytest.mark.parametrize(
    ("threshold", "absolute", "relative", "parameters"), [(0.3, 64, 1.5, {}), (0.5, 32, 1.1, SGLANG_LIBRARY)]
)
@given(options=pools())
def test_cache_aware_goes_by_the_match_where_load_is_even_and_else_by_load(
    threshold: float, absolute: int, relative: float, parameters: dict[str, Any], options: list[Candidate]
) -> None:
    least, most = (f(c.inflight_requests for c in options) for f in (min, max))
    longest = max(c.cached_tokens for c in options)
    chosen = first("cache_aware", options, **parameters)
    if longest / TOKENS > threshold and not (most - least > absolute and most > relative * least):
        assert chosen.cached_tokens == longest
    else:
        assert chosen.inflight_requests == least


def test_cache_aware_keeps_a_match_until_load_is_both_absolutely_and_relatively_uneven() -> None:
    def pool(busy: int, idle: int) -> list[Candidate]:
        return [option("a:1", cached_tokens=900, inflight_requests=busy), option("b:1", inflight_requests=idle)]

    assert best("cache_aware", pool(64, 0)) == "a:1"
    assert best("cache_aware", pool(65, 0)) == "b:1"
    assert best("cache_aware", pool(265, 200)) == "a:1"
    assert best("cache_aware", pool(265, 200), **SGLANG_LIBRARY) == "b:1"


def test_cache_aware_sends_what_is_hardly_cached_to_the_least_loaded() -> None:
    options = [
        option("a:1", cached_tokens=300, inflight_requests=1),
        option("b:1", last_chosen=5),
        option("c:1", inflight_requests=2),
    ]
    assert best("cache_aware", options) == "b:1"
    assert best("cache_aware", options, cache_threshold=0.29) == "a:1"


@given(st.one_of(pools(), pools(cold=True)))
def test_llm_d_takes_the_greatest_weighted_sum(options: list[Candidate]) -> None:
    def total(c: Candidate) -> float:
        waits = [o.waiting_requests for o in options]
        queue = (max(waits) - c.waiting_requests) / (max(waits) - min(waits)) if max(waits) > min(waits) else 1.0
        older = sum(o.last_chosen < c.last_chosen for o in options)
        cold = all(o.cached_tokens == 0 for o in options)
        turn = (1 - older / (len(options) - 1) if len(options) > 1 else 1.0) if cold else 0.5
        return 2 * queue + 2 * (1 - c.kv_usage) + 3 * c.cached_tokens / TOKENS + 2 * turn

    assert total(first("llm_d", options)) == pytest.approx(max(map(total, options)))


def test_llm_d_takes_turns_with_prompts_that_nobody_has_cached() -> None:
    world = World("llm_d")
    for letter in "abc":
        world.endpoint(f"{letter}:1")
    assert [world.pick_and_end() for _ in range(6)] == ["a:1", "b:1", "c:1"] * 2


def test_llm_d_follows_a_match_against_the_turn_but_not_into_a_full_engine() -> None:
    idle = option("b:1")
    assert best("llm_d", [option("a:1", cached_tokens=700, last_chosen=9), idle]) == "a:1"
    full = option("a:1", cached_tokens=700, waiting_requests=3, kv_usage=0.9)
    assert best("llm_d", [full, idle]) == "b:1"
    assert best("llm_d", [full, idle], queue_weight=0.0) == "a:1"


@given(pools())
def test_llm_d_load_aware_adds_the_match_to_half_a_point_for_a_short_queue(options: list[Candidate]) -> None:
    def total(c: Candidate) -> float:
        load = 0.5 if c.waiting_requests == 0 else 0.5 * (1 - min(c.waiting_requests, 128) / 128)
        return c.cached_tokens / TOKENS + load

    assert total(first("llm_d_load_aware", options)) == pytest.approx(max(map(total, options)))


def test_llm_d_load_aware_never_leaves_more_than_half_of_the_prompt_cached_behind() -> None:
    idle = option("b:1")
    assert best("llm_d_load_aware", [option("a:1", cached_tokens=501, waiting_requests=500), idle]) == "a:1"
    assert best("llm_d_load_aware", [option("a:1", cached_tokens=499, waiting_requests=128), idle]) == "b:1"


def test_llm_d_affinity_keeps_to_those_that_have_most_of_the_prompt_until_they_are_18_s_behind() -> None:
    def pool(waiting_tokens: int, cached_tokens: int = 800) -> list[Candidate]:
        busy = {"waiting_requests": 9, "kv_usage": 0.9, "pending_prefill_tokens": waiting_tokens}
        return [option("a:1", cached_tokens=cached_tokens, **busy), option("b:1"), option("c:1")]

    assert best("llm_d_affinity", pool(286_000)) == "a:1"  # 17,956 ms at 15,928 tokens a second
    assert best("llm_d_affinity", pool(287_500)) != "a:1"
    assert best("llm_d_affinity", pool(0, cached_tokens=799)) != "a:1"
    assert best("llm_d_affinity", pool(287_500), most_wait_ms=20_000.0) == "a:1"


@given(pools())
def test_llm_d_affinity_ranks_by_the_scores_of_llm_d_within_those_it_keeps(options: list[Candidate]) -> None:
    sticky = [c for c in options if c.cached_tokens >= 0.8 * TOKENS]
    kept = sticky or options
    chosen = first("llm_d_affinity", options, most_wait_ms=1e12)
    by_llm_d = build_policy("llm_d", {"no_hit_lru_weight": 0.0}).rank(prompt(), kept, Random(0)).order
    scores = {ranked.candidate.address: ranked.score for ranked in by_llm_d}
    assert scores[chosen.address] == pytest.approx(min(scores.values()))


@given(pools(), st.floats(0.0, 4.0))
def test_dynamo_kv_takes_the_least_of_weighted_prefill_and_active_blocks(
    options: list[Candidate], weight: float
) -> None:
    def blocks(c: Candidate) -> float:
        return weight * (c.pending_prefill_tokens + c.uncached_tokens) / 16 + c.inflight_prompt_tokens / 16

    assert blocks(first("dynamo_kv", options, overlap_score_weight=weight)) == pytest.approx(min(map(blocks, options)))
