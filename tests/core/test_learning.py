"""Constants learned from observed answers."""

from __future__ import annotations

import pytest

from fairlead.core.budget import MessageBudget
from fairlead.core.learning import LEAST_SAMPLES, Learner, Observation
from fairlead.core.pool import Endpoint, Pool


def seen(**more: object) -> Observation:
    usual = {
        "address": "a:1", "model": "m", "language": "en", "estimated_tokens": 1000, "ratio": 1.0, "queued_tokens": 0,
        "rtt_ms": 10.0, "first_token_ms": 210.0, "decode_ms": 990.0, "prompt_tokens": 1000, "cached_tokens": 0,
        "completion_tokens": 100, "beside_requests": 0.0,
    }  # fmt: skip
    return Observation(**(usual | more))  # type: ignore[arg-type]


@pytest.fixture
def pool() -> Pool:
    return Pool([Endpoint("a:1", "m"), Endpoint("b:1", "m"), Endpoint("c:1", "other")], {})


def learn(pool: Pool, *observations: Observation) -> Learner:
    learner = Learner()
    for observation in observations:
        learner.observe(observation, pool)
    return learner


def test_times_per_token_are_put_in_force_on_every_endpoint_of_the_model(pool: Pool) -> None:
    learn(pool, *[seen()] * LEAST_SAMPLES)
    assert [(e.prefill_ms_per_token, e.decode_ms_per_token) for e in pool.endpoints] == [
        (pytest.approx(0.2), pytest.approx(10.0, rel=0.01)),
        (pytest.approx(0.2), pytest.approx(10.0, rel=0.01)),
        (0.1, 20.0),
    ]


def test_one_model_on_two_kinds_of_engine_has_two_speeds(pool: Pool) -> None:
    slow = seen(address="b:1", first_token_ms=610.0, decode_ms=2970.0)
    learn(pool, *[seen(), slow] * 101)
    a, b, _ = pool.endpoints
    assert 2 < b.prefill_ms_per_token / a.prefill_ms_per_token < 4
    assert 2 < b.decode_ms_per_token / a.decode_ms_per_token < 4


def test_a_few_slow_answers_say_little_of_one_engine(pool: Pool) -> None:
    learn(pool, *[seen()] * 50, *[seen(address="b:1", first_token_ms=610.0)] * 2)
    assert pool.by_address["b:1"].prefill_ms_per_token == pytest.approx(0.2, rel=0.2)


def test_what_was_learned_of_an_engine_that_left_is_forgotten(pool: Pool) -> None:
    learner = learn(pool, *[seen()] * LEAST_SAMPLES, *[seen(model="other", address="c:1")] * LEAST_SAMPLES)
    learner.forget_all_but([pool.by_address["b:1"]])
    assert (list(learner.models), learner.engines) == (["m"], {})


def test_answers_are_expected_to_be_as_long_as_those_of_the_model_were(pool: Pool) -> None:
    learn(pool, *[seen(completion_tokens=30)] * LEAST_SAMPLES, *[seen(completion_tokens=90)] * LEAST_SAMPLES)
    assert [e.answer_tokens for e in pool.endpoints] == [60.0, 60.0, 256.0]


def test_until_there_are_enough_samples_the_configured_values_count(pool: Pool) -> None:
    learn(pool, *[seen()] * (LEAST_SAMPLES - 1))
    assert pool.endpoints[0].prefill_ms_per_token == 0.1


def test_a_new_configured_value_counts_until_there_are_enough(pool: Pool) -> None:
    learner = learn(pool, seen())
    pool.endpoints[0].prefill_ms_per_token = 0.3  # the configuration was loaded again
    learner.apply(pool.endpoints)
    assert pool.endpoints[0].prefill_ms_per_token == 0.3


def test_outliers_do_not_move_what_is_learned(pool: Pool) -> None:
    learn(pool, *[seen()] * 20, *[seen(first_token_ms=1e6, decode_ms=1e9)] * 9)
    assert pool.endpoints[0].prefill_ms_per_token == pytest.approx(0.2)


def test_others_prompts_are_not_taken_for_the_models_own_decoding(pool: Pool) -> None:
    """They stall four answers in five, for 50,000 tokens each."""
    stalled = seen(decode_ms=990.0 + 5000.0, prefilled_tokens=50_000)
    learn(pool, *[seen(), *[stalled] * 4] * 10)
    assert pool.endpoints[0].decode_ms_per_token == pytest.approx(10.0, rel=0.1)


def test_cached_tokens_cost_no_prefill_and_the_queue_does(pool: Pool) -> None:
    learn(pool, *[seen(cached_tokens=600, queued_tokens=1600)] * LEAST_SAMPLES)
    assert pool.endpoints[0].prefill_ms_per_token == pytest.approx(0.1)


def test_an_engine_that_does_not_report_its_cache_teaches_no_prefill(pool: Pool) -> None:
    learner = learn(pool, *[seen(cached_tokens=None)] * 20)
    assert learner.models["m"].prefill_ms_per_token.samples == 0


def test_the_ratio_is_of_the_raw_estimate_whatever_ratio_was_in_force(pool: Pool) -> None:
    learner = learn(pool, *[seen(estimated_tokens=1500, ratio=1.5, prompt_tokens=2000)] * LEAST_SAMPLES)
    assert learner.ratio("en") == pytest.approx(2.0)
    assert learner.ratio("ja") == 1.0


def test_an_absurd_count_is_not_believed(pool: Pool) -> None:
    assert learn(pool, *[seen(prompt_tokens=10**9)] * 20).ratio("en") == 1.0


def test_a_model_that_left_the_pool_is_nothing_to_learn(pool: Pool) -> None:
    assert learn(pool, seen(model="gone"), seen(address="gone:1")).models == {}


def test_a_budget_refills_with_time_and_an_observed_stream_may_overdraw_it() -> None:
    budget = MessageBudget(10.0)
    opened = [budget.open(0.0)]
    for _ in range(50):
        budget.spend()
    opened += [budget.open(1.0), budget.open(3.0), budget.open(3.5)]
    assert opened == [True, False, False, True]


def test_a_clock_that_goes_back_does_not_drain_the_budget() -> None:
    budget = MessageBudget(10.0)
    assert [budget.open(100.0), budget.open(0.0)] == [True, True]
