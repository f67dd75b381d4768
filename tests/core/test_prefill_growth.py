"""How prefill grows is known from many estimates together, each by what it knows."""

from __future__ import annotations

import math
from random import Random

import pytest

from fairlead.core.endpoint import Speed
from fairlead.core.prefill_growth import EVERY, Estimate, PrefillGrowth
from tests.core.world import World, carries

TRUE = 6e-5
LONG = 60_000.0


def noisy(growth: float, count: int, error: float = 4e-5, seed: int = 1) -> list[Estimate]:
    rng = Random(seed)
    return [Estimate(rng.gauss(growth, error), error, LONG) for _ in range(count)]


def after(*estimates: Estimate) -> PrefillGrowth:
    known = PrefillGrowth()
    for each in estimates:
        known.add(each)
    return known


@pytest.mark.parametrize("seed", range(10))
def test_estimates_that_are_uncertain_are_certain_together(seed: int) -> None:
    assert after(Estimate(TRUE, 4e-5, LONG)).value == 0.0
    assert after(*noisy(TRUE, 200, seed=seed)).value == pytest.approx(TRUE, rel=0.5)


def test_chance_is_no_growth_however_often_it_comes() -> None:
    believed = [after(*noisy(0.0, 200, seed=seed)).value > 0 for seed in range(100)]
    assert sum(believed) <= 2


@pytest.mark.parametrize("none", [Estimate(1.0, math.inf, LONG), Estimate(TRUE, 1e-6, 0.0)])
def test_an_estimate_that_tells_nothing_changes_nothing(none: Estimate) -> None:
    assert after(*[none] * 100).value == 0.0
    assert after(*noisy(TRUE, 50, 1e-6), *[none] * 100).value == pytest.approx(TRUE, rel=0.1)


def test_short_prompts_say_little_of_long_ones_however_certain_they_seem() -> None:
    short = Estimate(TRUE / 2, 1e-9, 500.0)
    assert after(short).value == 0.0
    assert after(*noisy(TRUE, 50, 1e-6), *[short] * 50).value == pytest.approx(TRUE, rel=0.1)


def test_an_engine_that_became_another_one_is_seen_at_once() -> None:
    assert after(*noisy(TRUE, 200, 2e-6), *noisy(3 * TRUE, 2, 2e-6)).value == pytest.approx(3 * TRUE, rel=0.1)
    assert after(*noisy(TRUE, 200, 2e-6), *noisy(0.0, 2, 2e-6)).value == 0.0


def test_it_is_estimated_again_when_there_are_enough_new_samples() -> None:
    known = PrefillGrowth()
    assert [samples for samples in range(8, 60) if known.is_due(samples)] == [
        8,
        8 + EVERY,
        8 + 2 * EVERY,
        8 + 3 * EVERY,
    ]


def test_what_another_process_was_certain_of_stays_until_samples_show_more() -> None:
    known = PrefillGrowth()
    known.restore(TRUE)
    assert known.value == TRUE
    for each in noisy(2 * TRUE, 5, 1e-6):
        known.add(each)
    assert known.value == pytest.approx(2 * TRUE, rel=0.1)


def test_one_long_prompt_is_waited_for_longer_than_many_short_ones_of_as_many_tokens() -> None:
    world = World()
    for address in ("long:1", "short:1"):
        world.endpoint(address)
    long, short = world.router.pool.endpoints
    for endpoint in (long, short):
        endpoint.speed = Speed(0.1, 20.0, prefill_growth=TRUE)
    carries(long, inflight_requests=10, pending_prefill_tokens=60_000, pending_attended_tokens=60_000**2 // 2)
    carries(short, inflight_requests=10, pending_prefill_tokens=60_000, pending_attended_tokens=10 * 6000**2 // 2)
    assert [world.pick(tokens=100).addresses[0] for _ in range(3)] == ["short:1"] * 3


def test_the_end_of_a_long_prompt_costs_more_than_its_beginning() -> None:
    even, grown = Speed(0.1, 20.0), Speed(0.1, 20.0, prefill_growth=TRUE)
    assert even.prefill_ms(60_000, 30_000) == even.prefill_ms(30_000, 0)
    assert grown.prefill_ms(60_000, 30_000) > 1.5 * grown.prefill_ms(30_000, 0)
