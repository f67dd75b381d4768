"""Constants learned from observed answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

import msgspec
import pytest

from fairlead.core.adapter_slots import USUAL_LOAD_MS, AdapterNeed
from fairlead.core.budget import ObservationBudget
from fairlead.core.endpoint import Speed
from fairlead.core.learning import Learner
from fairlead.core.observation import Observation
from fairlead.core.pool import Pool
from fairlead.core.prefill_work import attended_tokens, work_tokens
from fairlead.core.running import LEAST_LOADS, LEAST_SAMPLES
from fairlead.core.text_kinds import NUMBER
from fairlead.core.token_model import RATES_BEFORE
from tests.core.world import make_endpoint

PROSE = NUMBER["prose"]


def seen(**more: object) -> Observation:
    usual = {
        "address": "a:1", "model": "m", "estimated_tokens": 1000, "queued_tokens": 0, "rtt_ms": 10.0,
        "first_token_ms": 210.0, "decode_ms": 990.0, "prompt_tokens": 1000, "cached_tokens": 0,
        "completion_tokens": 100, "concurrent_requests": 0.0, "features": ((PROSE, 1000.0),),
    }  # fmt: skip
    return Observation(**(usual | more))  # type: ignore[arg-type]


@pytest.fixture
def pool() -> Pool:
    return Pool([make_endpoint("a:1", "m"), make_endpoint("b:1", "m"), make_endpoint("c:1", "other")], {})


def one_after_another(observations: Iterable[Observation]) -> Iterator[Observation]:
    """Those that name no time end at their engine one after another."""
    ended_s: dict[str, float] = {}
    for each in observations:
        took_ms = each.total_ms or (each.first_token_ms or 0.0) + (each.decode_ms or 0.0)
        ended_s[each.address] = each.ended_s or ended_s.get(each.address, 0.0) + took_ms / 1e3
        yield msgspec.structs.replace(each, ended_s=ended_s[each.address])


def learn(pool: Pool, *observations: Observation) -> Learner:
    learner = Learner()
    for observation in one_after_another(observations):
        learner.observe(observation, pool)
    learner.settle(pool)
    return learner


def test_times_per_token_are_put_in_force_on_every_endpoint_of_the_model(pool: Pool) -> None:
    learn(pool, *[seen()] * LEAST_SAMPLES)
    assert [(e.speed.prefill_ms_per_token, e.speed.decode_ms_per_token) for e in pool.endpoints] == [
        (pytest.approx(0.2), pytest.approx(10.0, rel=0.01)),
        (pytest.approx(0.2), pytest.approx(10.0, rel=0.01)),
        (0.1, 20.0),
    ]


def test_one_model_on_two_kinds_of_engine_has_two_speeds(pool: Pool) -> None:
    slow = seen(address="b:1", first_token_ms=610.0, decode_ms=2970.0)
    learn(pool, *[seen(), slow] * 101)
    a, b, _ = pool.endpoints
    assert b.speed.prefill_ms_per_token / a.speed.prefill_ms_per_token == pytest.approx(3, rel=0.1)
    assert b.speed.decode_ms_per_token / a.speed.decode_ms_per_token == pytest.approx(3, rel=0.1)


def test_a_few_slow_answers_say_little_of_one_engine(pool: Pool) -> None:
    learn(pool, *[seen()] * 50, *[seen(address="b:1", first_token_ms=610.0)] * 2)
    assert pool.by_address["b:1"].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.2)


def test_a_few_short_prompts_that_waited_do_not_say_what_prefill_takes_where_most_answers_only_decode(
    pool: Pool,
) -> None:
    """Other engines compute the prompts. In half a minute answers that only decode have outlived what showed prefill,
    and short prompts behind others, which waited for room as well, are all that is left of it.
    """
    learner = learn(pool, *[seen()] * 24)
    elsewhere = seen(address="b:1", direct=False)
    waited = seen(address="b:1", prompt_tokens=257, estimated_tokens=257, queued_tokens=300, first_token_ms=1200.0)
    for batch in range(1, 4):
        answers = [*[elsewhere] * 60, *[msgspec.structs.replace(waited, decode_ms=None)] * 9, *[elsewhere] * 20]
        for number, each in enumerate(answers):
            learner.observe(msgspec.structs.replace(each, ended_s=100.0 * batch + 0.5 * number), pool)
        learner.settle(pool)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.2)
    assert pool.endpoints[1].speed.decode_ms_per_token == pytest.approx(10.0, rel=0.1)
    for number in range(24):  # and it is learned again from prompts that show it
        learner.observe(seen(first_token_ms=410.0, ended_s=1000.0 + number), pool)
    learner.settle(pool)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.4, rel=0.2)


def test_prompts_that_are_computed_together_do_not_make_prefill_look_slow(pool: Pool) -> None:
    """An engine computes in one step what fits into it: each of four prompts waits for all four, the first too."""
    rng = Random(5)
    answers = []
    for _ in range(24):
        alone = rng.randrange(300, 1500)
        answers.append(seen(prompt_tokens=alone, estimated_tokens=alone, first_token_ms=30.0 + 0.2 * alone))
        together = [rng.randrange(100, 500) for _ in range(4)]
        ms = 30.0 + 0.2 * sum(together)
        answers += [
            seen(
                prompt_tokens=tokens, estimated_tokens=tokens, first_token_ms=ms,
                queued_tokens=sum(together[:n]), came_after_tokens=sum(together[n + 1 :]),
            )
            for n, tokens in enumerate(together)
        ]  # fmt: skip
    learn(pool, *answers)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.1)


def test_prompts_that_may_be_cached_do_not_hide_what_new_ones_show(pool: Pool) -> None:
    """As SGLang's torch_native attention: a token that is cached takes half as long as one that is not. Nor does it
    tell which were. Each conversation has one prompt that is new and two that go on from it.
    """
    rng = Random(5)
    answers = []
    for _ in range(20):
        tokens = rng.randrange(300, 900)
        answers.append(seen(prompt_tokens=tokens, estimated_tokens=tokens, first_token_ms=30.0 + 0.2 * tokens))
        for _ in range(2):
            cached, tokens = tokens, tokens + rng.randrange(100, 200)
            ms = 30.0 + 0.2 * (tokens - cached) + 0.12 * cached
            answers.append(
                seen(prompt_tokens=tokens, estimated_tokens=tokens, expected_cached_tokens=cached, first_token_ms=ms,
                     cached_tokens=None)
            )  # fmt: skip
    learn(pool, *answers)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.1)


def test_one_answer_that_stalled_does_not_make_its_engine_eleven_times_slower(pool: Pool) -> None:
    """As recorded: 25 steps in 3.9 s, while another prompt was prefilled whose tokens were counted only afterwards.

    The engine would get no more requests, and could not show the contrary. The others' answers went alongside prefills,
    and weigh less.
    """
    stalled = seen(address="b:1", completion_tokens=26, decode_ms=3941.0)
    alongside = seen(address="b:1", completion_tokens=500, decode_ms=4990.0 + 13_400.0, prefilled_tokens=134_000)
    learn(pool, *[seen()] * 20, stalled, alongside, alongside, alongside)
    speeds = [endpoint.speed.decode_ms_per_token for endpoint in pool.endpoints[:2]]
    assert speeds[1] == pytest.approx(speeds[0])


def test_tokens_of_another_prompt_that_is_under_way_make_an_answer_say_little(pool: Pool) -> None:
    stalled = seen(address="b:1", completion_tokens=26, decode_ms=3941.0, under_way_tokens=37_000)
    learn(pool, *[seen()] * 20, *[stalled] * 8)
    speeds = [endpoint.speed.decode_ms_per_token for endpoint in pool.endpoints[:2]]
    assert speeds[1] == pytest.approx(speeds[0])


def test_what_was_learned_of_an_engine_that_left_is_forgotten(pool: Pool) -> None:
    learner = learn(pool, *[seen()] * LEAST_SAMPLES, *[seen(model="other", address="c:1")] * LEAST_SAMPLES)
    learner.forget_all_but([pool.by_address["b:1"]])
    assert (list(learner.models), learner.engines) == (["m"], {})


def test_answers_are_expected_to_be_as_long_as_those_of_the_model_were(pool: Pool) -> None:
    learn(pool, *[seen(completion_tokens=30)] * LEAST_SAMPLES, *[seen(completion_tokens=90)] * LEAST_SAMPLES)
    assert [e.speed.answer_tokens for e in pool.endpoints] == [60.0, 60.0, 256.0]


def test_until_there_are_enough_samples_the_configured_values_count(pool: Pool) -> None:
    learn(pool, *[seen()] * (LEAST_SAMPLES - 1))
    assert pool.endpoints[0].speed.prefill_ms_per_token == 0.1


def test_a_new_configured_value_counts_until_there_are_enough(pool: Pool) -> None:
    learner = learn(pool, seen())
    pool.endpoints[0].speed = Speed(0.3, 20.0)  # the configuration was loaded again
    learner.apply(pool.endpoints)
    assert pool.endpoints[0].speed.prefill_ms_per_token == 0.3


def test_outliers_do_not_move_what_is_learned(pool: Pool) -> None:
    usual = [seen(ended_s=2.0 * n) for n in range(1, 21)]
    learn(pool, *usual, *[seen(first_token_ms=1e6, decode_ms=1e9, ended_s=40.0 + n) for n in range(9)])
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2)


def test_others_prompts_are_not_taken_for_the_models_own_decoding(pool: Pool) -> None:
    """They stall four answers in five, for 50,000 tokens each."""
    stalled = seen(decode_ms=990.0 + 5000.0, prefilled_tokens=50_000)
    learn(pool, *[seen(), *[stalled] * 4] * 10)
    assert pool.endpoints[0].speed.decode_ms_per_token == pytest.approx(10.0, rel=0.1)


def test_tokens_that_came_together_with_the_first_took_their_time_before_it(pool: Pool) -> None:
    """Somebody waited for a core: 60 of 100 tokens came at once, and some answers whole."""
    bundled = seen(first_tokens=60, first_token_ms=210.0 + 590.0, decode_ms=400.0)
    whole = seen(first_tokens=100, first_token_ms=210.0 + 990.0, decode_ms=0.1)
    long = seen(first_tokens=100, first_token_ms=410.0 + 990.0, decode_ms=0.1, prompt_tokens=2000)
    learn(pool, *[bundled, whole, long] * 10)
    assert pool.endpoints[0].speed.decode_ms_per_token == pytest.approx(10.0, rel=0.1)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.1)


def test_cached_tokens_cost_no_prefill_and_the_queue_does(pool: Pool) -> None:
    learn(pool, *[seen(cached_tokens=600, queued_tokens=1600)] * LEAST_SAMPLES)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.1)


def test_an_engine_that_never_reports_its_cache_had_nothing_of_a_prompt_that_is_new(pool: Pool) -> None:
    learn(pool, *[seen(cached_tokens=None)] * 20)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.01)


def test_of_a_prompt_that_is_not_new_it_is_taken_to_have_had_what_routing_expects(pool: Pool) -> None:
    learn(pool, *[seen(cached_tokens=None, expected_cached_tokens=500, first_token_ms=110.0)] * 20)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.01)


def test_what_routing_expects_is_a_share_of_the_prompt_as_its_engine_counts_it(pool: Pool) -> None:
    """Half of the prompt, of which routing thought that it had a tenth of its tokens."""
    half = seen(cached_tokens=None, estimated_tokens=100, expected_cached_tokens=50, first_token_ms=110.0)
    learn(pool, *[half] * 20)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.01)


def test_an_engine_that_has_reported_cached_tokens_leaves_them_out_where_there_are_none(pool: Pool) -> None:
    """As vLLM does with --enable-prompt-tokens-details: routing expected 500, and the engine had evicted them."""
    missed = [seen(cached_tokens=None, expected_cached_tokens=500)] * 20
    learn(pool, seen(cached_tokens=500, first_token_ms=110.0), *missed)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.01)


def test_answers_in_one_piece_teach_prefill_and_decoding_together(pool: Pool) -> None:
    """0.4 ms for each token of the prompt and 9 for each of the answer, as an engine of neither default has."""
    whole = [
        seen(first_token_ms=None, decode_ms=None, prompt_tokens=prompt, completion_tokens=answer,
             total_ms=10.0 + 0.4 * prompt + 9.0 * (answer - 1))
        for prompt in (300, 900, 2500, 4000) for answer in (20, 90, 200)
    ]  # fmt: skip
    learn(pool, *whole)
    speed = pool.endpoints[0].speed
    assert speed.prefill_ms_per_token == pytest.approx(0.4, rel=0.05)
    assert speed.decode_ms_per_token == pytest.approx(9.0, rel=0.05)


def test_answers_in_one_piece_that_are_all_alike_do_not_tell_one_from_the_other(pool: Pool) -> None:
    learner = learn(pool, *[seen(first_token_ms=None, decode_ms=None, total_ms=3000.0)] * 50)
    assert not learner.models["m"].knows_prefill
    assert pool.endpoints[0].speed.prefill_ms_per_token == 0.1


def test_what_a_request_costs_by_itself_is_no_prefill(pool: Pool) -> None:
    lengths = (300, 500, 900, 1500, 2500, 4000)
    learn(pool, *[seen(prompt_tokens=n, first_token_ms=10.0 + 40.0 + 0.05 * n) for n in lengths] * 4)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.05, rel=0.1)


def test_what_each_request_costs_is_learned_apart_from_its_tokens_and_put_in_force(pool: Pool) -> None:
    lengths = (300, 500, 900, 1500, 2500, 4000)
    learn(pool, *[seen(prompt_tokens=n, first_token_ms=10.0 + 40.0 + 0.05 * n) for n in lengths] * 4)
    assert pool.endpoints[0].speed.fixed_ms == pytest.approx(40.0, rel=0.25)
    assert pool.endpoints[2].speed.fixed_ms == 0.0  # another model


def grows(prompt: int, cached: int = 0, growth: float = 6e-5, noise: float = 1.0, **more: object) -> Observation:
    """A prompt whose tokens take the longer, the more of it is before them: 0.2 ms at its beginning."""
    took_ms = 0.2 * work_tokens(prompt - cached, cached, growth) * noise
    return seen(prompt_tokens=prompt, cached_tokens=cached, first_token_ms=10.0 + took_ms, **more)


def of_all_lengths(count: int, growth: float, spread: float = 0.0, seed: int = 1) -> list[Observation]:
    rng = Random(seed)
    lengths = [int(rng.lognormvariate(8.5, 1.2)) + 1 for _ in range(count)]
    return [grows(n, rng.choice([0, n // 2]), growth, rng.lognormvariate(0.0, spread)) for n in lengths]


def test_how_prefill_grows_is_learned_from_prompts_of_different_lengths_and_in_force_on_every_engine(
    pool: Pool,
) -> None:
    learn(pool, *of_all_lengths(60, 6e-5))
    for endpoint in pool.endpoints[:2]:
        assert endpoint.speed.prefill_growth == pytest.approx(6e-5, rel=0.1)
        assert endpoint.speed.prefill_ms(60_000, 20_000) == pytest.approx(
            0.2 * work_tokens(40_000, 20_000, 6e-5), rel=0.1
        )
    assert pool.endpoints[2].speed.prefill_growth == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_it_is_found_through_noise(pool: Pool, seed: int) -> None:
    learn(pool, *of_all_lengths(100, 6e-5, 0.2, seed))
    speed = pool.endpoints[0].speed
    assert speed.prefill_ms(60_000, 0) == pytest.approx(0.2 * work_tokens(60_000, 0, 6e-5), rel=0.3)


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_not_taken_for_growth(pool: Pool, seed: int) -> None:
    learn(pool, *of_all_lengths(100, 0.0, 0.2, seed))
    assert pool.endpoints[0].speed.prefill_ms(60_000, 0) == pytest.approx(0.2 * 60_000, rel=0.2)


def test_prompts_that_are_all_alike_show_no_growth(pool: Pool) -> None:
    rng = Random(1)
    learn(pool, *[grows(4000, noise=rng.lognormvariate(0.0, 0.1)) for _ in range(100)])
    assert pool.endpoints[0].speed.prefill_growth == 0.0
    assert pool.endpoints[0].speed.prefill_ms(4000, 0) == pytest.approx(0.2 * work_tokens(4000, 0, 6e-5), rel=0.1)


def test_what_is_known_of_it_stays_while_prompts_are_all_alike(pool: Pool) -> None:
    learner = learn(pool, *of_all_lengths(60, 6e-5))
    for each in one_after_another([grows(2000)] * 300):
        learner.observe(each, pool)
        learner.settle(pool)
    assert pool.endpoints[0].speed.prefill_growth == pytest.approx(6e-5, rel=0.1)


def test_an_engine_that_no_longer_grows_is_seen_to(pool: Pool) -> None:
    learner = learn(pool, *of_all_lengths(60, 6e-5))
    for each in one_after_another(of_all_lengths(300, 0.0)):
        learner.observe(each, pool)
        learner.settle(pool)
    assert pool.endpoints[0].speed.prefill_ms(60_000, 0) == pytest.approx(0.2 * 60_000, rel=0.1)


def test_others_long_prompts_are_not_taken_for_slow_decoding(pool: Pool) -> None:
    others = attended_tokens(50_000, 50_000)
    stalled_ms = 0.2 * (50_000 + 6e-5 * others)
    stalled = seen(decode_ms=990.0 + stalled_ms, prefilled_tokens=50_000, prefilled_attended_tokens=others)
    learn(pool, *of_all_lengths(60, 6e-5), *[stalled, seen()] * 20)
    assert pool.endpoints[0].speed.decode_ms_per_token == pytest.approx(10.0, rel=0.05)


def test_an_engine_that_takes_longer_for_each_request_is_not_taken_for_one_that_is_slow_at_each_token(
    pool: Pool,
) -> None:
    lengths = (300, 500, 900, 1500, 2500, 4000)
    quick = [seen(prompt_tokens=n, first_token_ms=10.0 + 0.1 * n) for n in lengths]
    server = [seen(address="b:1", prompt_tokens=n, first_token_ms=10.0 + 300.0 + 0.1 * n) for n in lengths]
    learn(pool, *(quick * 3 + server) * 8)
    a, b, _ = pool.endpoints
    assert b.speed.prefill_ms_per_token == pytest.approx(a.speed.prefill_ms_per_token, rel=0.15)
    assert b.speed.fixed_ms - a.speed.fixed_ms == pytest.approx(300.0, rel=0.15)


def test_an_engine_that_is_slow_at_each_token_is_not_taken_for_one_that_takes_longer_for_each_request(
    pool: Pool,
) -> None:
    lengths = (300, 500, 900, 1500, 2500, 4000)
    quick = [seen(prompt_tokens=n, first_token_ms=10.0 + 0.1 * n) for n in lengths]
    slow = [seen(address="b:1", prompt_tokens=n, first_token_ms=10.0 + 0.3 * n) for n in lengths]
    learn(pool, *(quick * 3 + slow) * 8)
    a, b, _ = pool.endpoints
    assert b.speed.prefill_ms_per_token / a.speed.prefill_ms_per_token == pytest.approx(3.0, rel=0.15)
    assert b.speed.fixed_ms == pytest.approx(0.0, abs=20.0)


def test_a_change_of_one_engine_is_seen_within_thirty_of_its_answers(pool: Pool) -> None:
    slow = seen(address="b:1", first_token_ms=610.0, decode_ms=2970.0)
    learn(pool, *[seen(), seen(address="b:1")] * 100, *[seen(), slow] * 30)
    a, b, _ = pool.endpoints
    assert b.speed.prefill_ms_per_token / a.speed.prefill_ms_per_token == pytest.approx(3, rel=0.1)
    assert b.speed.decode_ms_per_token / a.speed.decode_ms_per_token == pytest.approx(3, rel=0.1)


def test_waits_at_an_engine_without_room_do_not_make_it_a_slow_one(pool: Pool) -> None:
    waited = seen(address="b:1", first_token_ms=410.0, queued_tokens=1000, engine_full=True)
    learn(pool, *[seen(), seen(address="b:1")] * 50, *[waited, seen(address="b:1", first_token_ms=510.0,
          queued_tokens=1000, engine_full=True)] * 10)  # fmt: skip
    a, b, _ = pool.endpoints
    assert b.speed.prefill_ms_per_token == a.speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.05)


def test_images_say_nothing_of_how_many_tokens_text_has(pool: Pool) -> None:
    image = seen(media=1, features=((PROSE, 370.0), (NUMBER["image"], 1.0)), prompt_tokens=626)
    rates = learn(pool, *[seen()] * 3, *[image] * 20).rates("m", pool)
    assert rates[PROSE] == pytest.approx(1.0, abs=0.05)
    assert rates[NUMBER["image"]] == pytest.approx(256, abs=20)


def test_an_answer_that_came_after_a_failed_try_elsewhere_teaches_no_prefill(pool: Pool) -> None:
    learn(pool, *[seen(direct=False, first_token_ms=5000.0)] * 20)
    assert pool.endpoints[0].speed.prefill_ms_per_token == 0.1


def test_tokens_are_counted_as_the_model_does(pool: Pool) -> None:
    learner = learn(pool, *[seen(features=((PROSE, 1000.0),), prompt_tokens=2000)] * LEAST_SAMPLES)
    assert learner.rates("m", pool)[PROSE] == pytest.approx(2.0, rel=0.02)
    assert learner.rates("other", pool) == RATES_BEFORE


def test_a_route_counts_by_the_mean_of_its_models(pool: Pool) -> None:
    other = seen(address="c:1", model="other")
    learner = learn(pool, *[seen(prompt_tokens=2000), other] * LEAST_SAMPLES)
    assert learner.rates("auto", Pool(pool.endpoints, {"auto": ("m", "other")}))[PROSE] == pytest.approx(1.5, rel=0.02)


def test_an_absurd_count_is_not_believed(pool: Pool) -> None:
    assert learn(pool, *[seen(prompt_tokens=10**9)] * 20).rates("m", pool) == RATES_BEFORE


def test_a_model_that_left_the_pool_is_nothing_to_learn(pool: Pool) -> None:
    assert learn(pool, seen(model="gone"), seen(address="gone:1")).models == {}


def test_a_budget_is_of_answers_and_refills_with_time() -> None:
    budget = ObservationBudget(10.0, 1000.0)
    assert sum(opened(budget, "a:1", 0.0) for _ in range(50)) == 20
    assert sum(opened(budget, "a:1", 1.0) for _ in range(50)) == 10


def test_streams_of_many_parts_are_as_few_as_their_messages_allow() -> None:
    budget = ObservationBudget(20.0, 500.0)
    seconds = range(100)
    observed = sum(opened(budget, "a:1", float(at), messages=250) for at in seconds for _ in range(20))
    assert 190 <= observed <= 230


def test_every_engine_gets_its_share_however_little_of_the_traffic_is_its_own() -> None:
    """One engine in sixteen answers a hundred times as much as each of the others."""
    budget = ObservationBudget(20.0, 500.0)
    observed = dict.fromkeys(range(16), 0)
    for tenth in range(1200):
        for engine in [0] * 10 + [1 + tenth % 15]:
            observed[engine] += opened(budget, f"{engine}:1", tenth / 10, messages=250)
    assert min(observed.values()) >= 8
    assert sum(observed.values()) <= 2 * 120 + 10


def test_without_either_rate_nothing_is_observed() -> None:
    assert not ObservationBudget(0.0, 100.0).open("a:1", 0.0)
    assert not ObservationBudget(100.0, 0.0).open("a:1", 0.0)


def test_a_clock_that_goes_back_does_not_drain_the_budget() -> None:
    budget = ObservationBudget(10.0, 1000.0)
    assert [budget.open("a:1", 100.0), budget.open("a:1", 0.0)] == [True, True]


def opened(budget: ObservationBudget, address: str, now_s: float, messages: int = 1) -> bool:
    if not budget.open(address, now_s):
        return False
    budget.ended(messages, streamed=messages > 1)
    return True


LOADS = AdapterNeed(load_tokens=1000, wait_ms=0.0)


def learn_loads(pool: Pool, *observations: Observation) -> None:
    """Of a pool whose prefill is known already."""
    learner = learn(pool, *[seen()] * LEAST_SAMPLES)
    for observation in observations:
        learner.observe(observation, pool)
    learner.settle(pool)


def test_an_adapters_load_is_what_its_first_answer_took_longer_than_a_prompt_does(pool: Pool) -> None:
    learn_loads(pool, *[seen(first_token_ms=210.0 + 350.0, adapter=LOADS)] * LEAST_LOADS)
    a, b, other = pool.endpoints
    assert [a.speed.adapter_load_ms, b.speed.adapter_load_ms] == pytest.approx([350.0, 350.0], rel=0.01)
    assert a.speed.prefill_ms_per_token == pytest.approx(0.2), "a load teaches nothing of prompts"
    assert other.speed.adapter_load_ms == USUAL_LOAD_MS


def test_an_engine_with_a_slow_disk_loads_slowly_and_others_of_its_model_do_not(pool: Pool) -> None:
    slow = seen(address="b:1", first_token_ms=210.0 + 2000.0, adapter=LOADS)
    fast = seen(first_token_ms=210.0 + 300.0, adapter=LOADS)
    learn_loads(pool, *[slow] * LEAST_LOADS, *[fast] * (LEAST_LOADS + 1))
    a, b, _ = pool.endpoints
    assert (a.speed.adapter_load_ms, b.speed.adapter_load_ms) == pytest.approx((300.0, 2000.0), rel=0.02)


@pytest.mark.parametrize(
    "more",
    [
        {"adapter": AdapterNeed(0, 0.0)},  # another request loads it
        {"adapter": AdapterNeed(1000, 50.0)},  # it waits for a slot
        {"adapter": LOADS, "engine_full": True},
        {"adapter": LOADS, "first_token_ms": None, "total_ms": 5000.0},  # in one piece: most of it is decoding
    ],
)
def test_a_first_token_that_waited_for_something_else_teaches_nothing_of_loads(
    pool: Pool, more: dict[str, object]
) -> None:
    learn_loads(pool, *[seen(**{"first_token_ms": 5000.0} | more)] * LEAST_LOADS)
    assert pool.endpoints[0].speed.adapter_load_ms == USUAL_LOAD_MS
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2)


def test_each_step_of_settling_fits_one_model_or_one_engine_and_the_last_puts_all_in_force(pool: Pool) -> None:
    """Requests are served between two steps, and a fit takes milliseconds."""
    learner = Learner()
    for address, model in (("a:1", "m"), ("b:1", "m"), ("c:1", "other")):
        for _ in range(LEAST_SAMPLES):
            learner.observe(seen(address=address, model=model), pool)
    steps = learner.settling(lambda: pool)
    assert sum(1 for _ in steps) == 2 + 2 + 3  # times and tokens of two models, three engines
    assert [e.speed.prefill_ms_per_token for e in pool.endpoints] == [pytest.approx(0.2)] * 3


def test_what_is_learned_while_the_pool_changes_is_in_force_on_the_new_one(pool: Pool) -> None:
    learner = Learner()
    for _ in range(LEAST_SAMPLES):
        learner.observe(seen(), pool)
    pools = [pool]
    steps = learner.settling(lambda: pools[-1])
    next(steps)
    pools.append(Pool([make_endpoint("d:1", "m")], {}))
    list(steps)
    assert pools[-1].endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2)


def at_speed(address: str, factor: float, ended_s: float, **more: object) -> Observation:
    """An answer of an engine that takes `factor` times as long as usual."""
    usual = {"address": address, "first_token_ms": 10.0 + 200.0 * factor, "decode_ms": 990.0 * factor}
    return seen(**(usual | {"ended_s": ended_s} | more))


def times_as_slow(pool: Pool) -> float:
    """`b` than `a`."""
    a, b, _ = pool.endpoints
    return b.speed.decode_ms_per_token / a.speed.decode_ms_per_token


def of_both(*times_s: int) -> list[Observation]:
    return [at_speed(name, factor, at_s) for at_s in times_s for name, factor in (("a:1", 1.0), ("b:1", 2.0))]


def test_while_nobody_asks_a_difference_of_an_hour_ago_counts(pool: Pool) -> None:
    learn(pool, *of_both(*range(1, 600, 10), 4200))
    assert times_as_slow(pool) == pytest.approx(2.0, rel=0.15)


def test_an_engine_that_answers_nothing_while_another_serves_is_tried_again(pool: Pool) -> None:
    alone = [at_speed("a:1", 1.0, at_s) for at_s in range(600, 4200, 10)]
    learn(pool, *of_both(*range(1, 600, 10)), *alone)
    assert times_as_slow(pool) < 1.2


def test_if_it_is_slow_still_one_answer_shows_it(pool: Pool) -> None:
    alone = [at_speed("a:1", 1.0, at_s) for at_s in range(600, 4200, 10)]
    learn(pool, *of_both(*range(1, 600, 10)), *alone, at_speed("b:1", 2.0, 4200.0))
    assert times_as_slow(pool) == pytest.approx(2.0, rel=0.15)


def test_it_is_not_tried_again_before_others_answered_some_dozens(pool: Pool) -> None:
    alone = [at_speed("a:1", 1.0, at_s) for at_s in range(600, 4200, 300)]
    learn(pool, *of_both(*range(1, 600, 10)), *alone)
    assert times_as_slow(pool) > 1.8


def test_a_model_that_has_kept_only_older_samples_makes_its_engine_no_slower_than_it_showed(pool: Pool) -> None:
    learner = learn(pool, *of_both(*range(1, 600, 10)))
    shown = times_as_slow(pool)
    learner.models["m"].newest_s -= 300.0
    learner.settle_all(pool)
    assert times_as_slow(pool) == pytest.approx(shown)


def test_answers_that_one_stall_made_slow_together_are_one_witness(pool: Pool) -> None:
    """As a replay of Mooncake's traffic had it: answers of 24 tokens, stalled by one prompt of which nobody knew."""
    usual = [at_speed(name, 1.0, at_s) for name in ("a:1", "b:1") for at_s in (2.4, 30.0)]
    stalled = [at_speed("b:1", 1.0, 20.5, completion_tokens=24, decode_ms=2700.0) for _ in range(4)]
    learn(pool, *[at_speed("a:1", 1.0, 1.5 * n) for n in range(40)], *usual, *stalled)
    assert times_as_slow(pool) == pytest.approx(1.0)


def test_where_speeds_change_within_minutes_a_difference_of_minutes_ago_counts_for_less(pool: Pool) -> None:
    """Each engine takes once and twice as long in turn, as if its clock throttled; `b` was last seen when quick."""
    changing = [
        at_speed(name, 2.0 if (at_s // 200 + phase) % 2 else 1.0, at_s)
        for at_s in range(0, 2000, 10)
        for name, phase in (("a:1", 0), ("b:1", 1))
    ]
    learn(pool, *changing, *[at_speed("a:1", 2.0, at_s) for at_s in range(2000, 2400, 10)])
    a, b, _ = pool.endpoints
    assert b.speed.decode_ms_per_token > 0.6 * a.speed.decode_ms_per_token  # it was half when it was last seen


def test_there_a_difference_of_now_counts_all_the_same(pool: Pool) -> None:
    changing = [
        at_speed(name, 2.0 if (at_s // 200 + phase) % 2 else 1.0, at_s)
        for at_s in range(0, 2200, 4)
        for name, phase in (("a:1", 0), ("b:1", 1))
    ]
    learn(pool, *changing)
    a, b, _ = pool.endpoints
    assert b.speed.decode_ms_per_token / a.speed.decode_ms_per_token > 1.5


def test_an_engine_at_which_requests_take_turns_is_seen_to_be_one(pool: Pool) -> None:
    """As vLLM on a CPU: n others make a step n + 1 times as long."""
    rng = Random(1)
    turns = [
        at_speed("a:1", rng.lognormvariate(0.0, 0.1), 0.0, concurrent_requests=float(others), decode_ms=decode_ms)
        for others in (0, 1, 2, 3) * 10
        for decode_ms in [990.0 * (1 + others) * rng.lognormvariate(0.0, 0.1)]
    ]
    learn(pool, *turns)
    assert pool.endpoints[0].speed.batch_slowdown > 0.6


def test_answers_of_several_texts_teach_neither_speed_nor_length(pool: Pool) -> None:
    """Of `n: 8`, or of a list of prompts, tokens of all come in the time of one: mostly such answers, and decoding
    looked seven times faster than it is, and an answer eight times longer."""
    several = seen(completion_tokens=800, several=True)
    learn(pool, *[seen()] * LEAST_SAMPLES, *[several] * 40)
    speed = pool.endpoints[0].speed
    assert speed.decode_ms_per_token == pytest.approx(10.0, rel=0.01)
    assert speed.answer_tokens == 100.0


def test_answers_of_several_texts_teach_how_tokens_are_counted(pool: Pool) -> None:
    learner = learn(pool, *[seen(prompt_tokens=1500, several=True)] * 12)
    assert learner.tokens["m"].rates[PROSE] == pytest.approx(1.5, rel=0.05)
