"""Policies that take the least of one sum or product, against an independent statement of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from fairlead.core.candidates import Candidate
from tests.policies.options import TOKENS, best, first, option, pools, rank

RULES: dict[str, tuple[str, dict[str, Any], Callable[[Candidate], float]]] = {
    "least_load": (
        "least_load",
        {},
        lambda c: sum((c.running_requests, c.waiting_requests, c.used_tokens, c.inflight_prompt_tokens)),
    ),
    "lpwl": ("lpwl", {}, lambda c: c.pending_prefill_tokens + TOKENS - c.cached_tokens),
    "lmetric": (
        "lmetric",
        {},
        lambda c: (c.pending_prefill_tokens + TOKENS - c.cached_tokens) * (c.inflight_requests + 1),
    ),
    "lmetric, EAR's form": (
        "lmetric",
        {"plus_one": False},
        lambda c: (c.pending_prefill_tokens + TOKENS - c.cached_tokens) * c.inflight_requests,
    ),
    "gorgo": (
        "gorgo",
        {},
        lambda c: 0.276 * c.rtt_ms + (TOKENS - c.cached_tokens) + 0.5 * c.inflight_prompt_tokens,
    ),
    "gorgo to the first token": (
        "gorgo",
        {"release_at_first_token": True, "rtt_weight": 1.0, "queue_weight": 0.25},
        lambda c: c.rtt_ms + (TOKENS - c.cached_tokens) + 0.25 * c.pending_prefill_tokens,
    ),
}


@pytest.mark.parametrize("rule", RULES)
@given(options=pools())
def test_the_least_wins_and_ties_go_to_the_least_recently_chosen(rule: str, options: list[Candidate]) -> None:
    policy, parameters, published = RULES[rule]
    assert first(policy, options, **parameters) == min(options, key=lambda c: (published(c), c.last_chosen))


@pytest.mark.parametrize("rule", RULES)
@given(options=pools())
def test_fallbacks_follow_in_order_of_the_same_score(rule: str, options: list[Candidate]) -> None:
    policy, parameters, published = RULES[rule]
    scores = [published(r.candidate) for r in rank(policy, options, **parameters).order]
    assert scores == sorted(scores)


def test_least_load_sees_load_that_came_past_this_router() -> None:
    busy = option("a:1", running_requests=9, used_tokens=40_000)
    assert best("least_load", [busy, option("b:1", inflight_prompt_tokens=30_000)]) == "b:1"


def test_lmetric_leaves_a_cached_prefix_for_an_idle_endpoint_when_the_batch_is_large() -> None:
    cached = option("a:1", cached_tokens=500, inflight_requests=2)
    assert best("lmetric", [cached, option("b:1")]) == "b:1"
    assert best("lmetric", [option("a:1", cached_tokens=500), option("b:1", last_chosen=1)]) == "a:1"


def test_without_the_one_an_idle_endpoint_wins_whatever_is_cached_elsewhere() -> None:
    options = [option("a:1", cached_tokens=990, inflight_requests=1), option("b:1")]
    assert best("lmetric", options, plus_one=False) == "b:1"
    assert best("lmetric", options) == "a:1"


def test_lpwl_ignores_requests_that_decode() -> None:
    options = [option("a:1", inflight_requests=50, cached_tokens=1), option("b:1")]
    assert best("lpwl", options) == "a:1"


def test_gorgo_stays_near_until_the_cache_far_away_saves_more_than_the_way() -> None:
    near = option("near:1", rtt_ms=37.0)
    assert best("gorgo", [near, option("far:1", rtt_ms=456.0, cached_tokens=100)]) == "near:1"
    assert best("gorgo", [near, option("far:1", rtt_ms=456.0, cached_tokens=200)]) == "far:1"


def test_gorgo_counts_cached_prompts_in_the_queue_until_they_end() -> None:
    decoding_cached_prompts = option("a:1", inflight_prompt_tokens=10_000, cached_tokens=100)
    options = [decoding_cached_prompts, option("b:1")]
    assert best("gorgo", options) == "b:1"
    assert best("gorgo", options, release_at_first_token=True) == "a:1"
