"""What routing expects to be cached is what engines then report, on traffic of all kinds."""

from __future__ import annotations

from random import Random

import pytest

from tests.core.cached_tokens_world import (
    BLOCK_TOKENS,
    TRAFFIC,
    Body,
    CachedTokensWorld,
    CachingEngine,
    Estimates,
    engine,
    of_others,
    prose,
    tokenize,
)


@pytest.fixture(scope="module", params=sorted(TRAFFIC))
def undisturbed(request: pytest.FixtureRequest) -> Estimates:
    """Two engines with room for everything."""
    return CachedTokensWorld(engine(), engine()).run(TRAFFIC[request.param](Random(7)))


def test_estimates_are_within_a_tenth_of_the_truth(undisturbed: Estimates) -> None:
    assert undisturbed.cached_ratio == pytest.approx(1, abs=0.05)
    assert undisturbed.length_ratio == pytest.approx(1, abs=0.05)


def test_no_more_is_expected_than_is_there_but_for_a_part_of_a_block(undisturbed: Estimates) -> None:
    assert max(undisturbed.too_high, default=0) <= BLOCK_TOKENS


def test_traffic_that_the_router_does_not_see_is_allowed_for() -> None:
    capacity_tokens = 30_000
    world = CachedTokensWorld(*[engine(capacity_tokens=capacity_tokens) for _ in range(2)],
                              capacity_tokens=capacity_tokens)  # fmt: skip
    traffic = (request for seed in range(3) for request in TRAFFIC["UUID JSON"](Random(seed)))
    assert world.run(traffic, foreign=of_others(Random(8), 400)).cached_ratio == pytest.approx(1, abs=0.1)


def test_an_answer_that_comes_back_is_cached_where_it_was_generated() -> None:
    world = CachedTokensWorld(engine())
    body, reply = chat(300), prose(Random(5), 300)
    world.ask(body, reply)
    expected, true, _, _ = world.ask(goes_on(body, reply), "yes")
    assert true > 600
    assert 0 <= expected - true <= BLOCK_TOKENS


def test_an_answer_is_credited_too_where_it_was_not_observed() -> None:
    world = CachedTokensWorld(engine())
    for seed in range(4):
        world.ask(chat(300, seed + 10), "yes")
    body, reply = chat(300), prose(Random(5), 300)
    world.ask(body, reply, observed=False)
    expected, true, _, _ = world.ask(goes_on(body, reply), "yes")
    assert expected == pytest.approx(true, rel=0.05)


def test_another_engine_with_the_same_prompt_has_not_that_answer() -> None:
    world = CachedTokensWorld(engine(), engine())
    body, reply = chat(300), prose(Random(5), 300)
    world.ask(body, reply)
    first, second = world.router.pool.endpoints
    answered_by = first if first.last_chosen else second
    answered_by.health.healthy = False
    expected, true, _, _ = world.ask(goes_on(body, reply), "yes")
    assert (expected, true) == (0, 0)


def test_engines_whose_template_drops_reasoning_are_not_credited_their_answers_for_long() -> None:
    world = CachedTokensWorld(CachingEngine(10**9, tokenize, image_tokens=256, keeps_replies=False))
    over = []
    for seed in range(4):
        body, reply = chat(300, seed), prose(Random(5), 300)
        world.ask(body, reply)
        expected, true, _, _ = world.ask(goes_on(body, reply), "yes")
        over.append(expected - true)
    assert over[0] > BLOCK_TOKENS
    assert max(over[1:]) <= BLOCK_TOKENS


def test_what_an_engine_denies_once_is_not_expected_again() -> None:
    """An engine with prefix caching off reports 0 whenever it is asked."""
    world = CachedTokensWorld(engine(capacity_tokens=0))
    body = chat(600)
    first, second, third = (world.ask(body, "yes") for _ in range(3))
    assert (first[0], second[0] > 700, third[0]) == (0, True, 0)


def test_an_engine_that_lost_its_cache_once_is_trusted_again() -> None:
    world = CachedTokensWorld(engine())
    body = chat(600)
    for _ in range(8):
        world.ask(body, "yes")
    world.engines["0:1"]._blocks.clear()
    world.ask(body, "yes")
    expected, true, _, _ = world.ask(body, "yes")
    assert 0 <= expected - true <= BLOCK_TOKENS


def test_tenants_with_salts_expect_nothing_of_each_others_prompts() -> None:
    world = CachedTokensWorld(engine())
    for _ in range(2):
        world.ask(chat(600) | {"cache_salt": "acme"}, "yes")
    expected, true, _, _ = world.ask(chat(600) | {"cache_salt": "umbrella"}, "yes")
    assert (expected, true) == (0, 0)


def chat(words: int, seed: int = 3) -> Body:
    return {"messages": [{"role": "user", "content": prose(Random(seed), words)}]}


def goes_on(body: Body, reply: str) -> Body:
    answered = {"role": "assistant", "content": reply}
    return {"messages": [*body["messages"], answered, {"role": "user", "content": "And then? " + prose(Random(4), 20)}]}
