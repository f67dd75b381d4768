"""A pool of two kinds of accelerator: a difference that is configured holds while engines teach, until they deny it."""

from __future__ import annotations

from itertools import islice
from random import Random

import msgspec
import pytest

from fairlead.core.answer_times import EQUAL, Line, Ratios, Work
from fairlead.core.endpoint import Speed
from fairlead.core.learned_state import LearnedState, pieces, restore
from fairlead.core.learning import Learner
from fairlead.core.observation import Observation
from fairlead.core.pool import Pool
from fairlead.core.running import LEAST_SAMPLES
from tests.core.test_learning import learn, one_after_another, seen
from tests.core.world import make_endpoint

SLOWER = Ratios(prefill=3.0, decode=0.5)  # `b`, as configured: it computes prompts slowly and decodes fast
SLOW = Ratios(prefill=3.0, decode=3.0)


def two_kinds() -> Pool:
    b = make_endpoint(
        "b:1", prefill_ms_per_token=0.3, decode_ms_per_token=10.0, prefill_ratio=3.0, decode_ratio=0.5
    )  # fmt: skip
    return Pool([make_endpoint("a:1"), b, make_endpoint("c:1")], {})


def answer(address: str, rng: Random, slower: Ratios = EQUAL) -> Observation:
    """Of an engine that is `slower` than 0.2 ms a token and 10 ms a step."""
    prompt, steps = rng.choice((400, 1000, 2500)), rng.choice((40, 99, 200))
    first_token_ms = 10.0 + 0.2 * slower.prefill * prompt * rng.lognormvariate(0.0, 0.1)
    decode_ms = 10.0 * slower.decode * steps * rng.lognormvariate(0.0, 0.1)
    return seen(
        address=address, prompt_tokens=prompt, completion_tokens=steps + 1, first_token_ms=first_token_ms,
        decode_ms=decode_ms,
    )  # fmt: skip


def speed(pool: Pool, address: str) -> tuple[float, float]:
    known: Speed = pool.by_address[address].speed
    return known.prefill_ms_per_token, known.decode_ms_per_token


def about(prefill_ms: float, decode_ms: float, rel: float = 0.2) -> tuple[object, object]:
    return pytest.approx(prefill_ms, rel=rel), pytest.approx(decode_ms, rel=rel)


@pytest.mark.parametrize(("taught", "slower"), [("a:1", EQUAL), ("b:1", SLOWER)])
def test_the_answers_of_one_kind_teach_both_and_the_difference_stays_as_configured(taught: str, slower: Ratios) -> None:
    pool, rng = two_kinds(), Random(1)
    learn(pool, *[answer(taught, rng, slower) for _ in range(2 * LEAST_SAMPLES)])
    assert speed(pool, "a:1") == speed(pool, "c:1") == about(0.2, 10.0)
    assert speed(pool, "b:1") == about(0.6, 5.0)


def test_few_answers_of_both_teach_one_line() -> None:
    pool, rng = two_kinds(), Random(2)
    half = LEAST_SAMPLES // 2
    learn(pool, *[each for _ in range(half) for each in (answer("a:1", rng), answer("b:1", rng, SLOWER))])
    assert (speed(pool, "a:1"), speed(pool, "b:1")) == (about(0.2, 10.0), about(0.6, 5.0))


def test_answers_deny_a_difference_that_is_not_there() -> None:
    """And then the engines of that kind teach the model what they take, not what was configured."""
    pool, rng, learner = two_kinds(), Random(3), Learner()
    answers = one_after_another([answer(address, rng) for _ in range(60) for address in ("a:1", "b:1", "c:1")])
    for _ in range(12):
        for each in islice(answers, 15):
            learner.observe(each, pool)
        learner.settle(pool)
    assert [speed(pool, address) for address in ("a:1", "b:1", "c:1")] == [about(0.2, 10.0)] * 3


def test_a_difference_that_is_not_configured_is_learned_and_the_model_stays_in_between() -> None:
    """An engine that joins is taken to be one of the others, on average."""
    pool, rng = Pool([make_endpoint("a:1"), make_endpoint("b:1"), make_endpoint("new:1")], {}), Random(4)
    learner, slow = Learner(), SLOW
    both = [each for _ in range(160) for each in (answer("a:1", rng), answer("b:1", rng, slow))]
    answers = one_after_another(both)
    for _ in range(40):
        for each in islice(answers, 8):
            learner.observe(each, pool)
        learner.settle(pool)
    assert (speed(pool, "a:1"), speed(pool, "b:1")) == (about(0.2, 10.0), about(0.6, 30.0))
    prefill_ms, decode_ms = speed(pool, "new:1")
    assert 0.2 < prefill_ms < 0.6
    assert 10.0 < decode_ms < 30.0


def test_one_slow_engine_makes_no_other_look_slow() -> None:
    """Nor one that joins."""
    names = [f"{name}:1" for name in "abcd"]
    pool, rng, learner = Pool([make_endpoint(name) for name in (*names, "new:1")], {}), Random(7), Learner()
    answers = [answer(name, rng, SLOW if name == "d:1" else EQUAL) for _ in range(60) for name in names]
    for number, each in enumerate(one_after_another(answers)):
        learner.observe(each, pool)
        if number % 8 == 7:
            learner.settle(pool)
    assert speed(pool, "d:1") == about(0.6, 30.0, 0.1)
    for name in (*names[:3], "new:1"):
        assert speed(pool, name) == about(0.2, 10.0, 0.05)


def test_samples_of_an_engine_that_left_say_of_the_others_what_they_said() -> None:
    """The line was of that engine, and is of the other one from then on."""
    pool, rng, learner, slow = Pool([make_endpoint("a:1"), make_endpoint("b:1")], {}), Random(8), Learner(), SLOW
    both = [each for _ in range(60) for each in (answer("a:1", rng), answer("a:1", rng), answer("b:1", rng, slow))]
    answers = one_after_another(both + [answer("b:1", rng, slow) for _ in range(40)])
    for _ in range(18):
        for each in islice(answers, 10):
            learner.observe(each, pool)
        learner.settle(pool)
    alone = Pool([make_endpoint("b:1")], {})
    learner.forget_all_but(alone.endpoints)
    for each in answers:
        learner.observe(each, alone)
        learner.settle(alone)
        assert speed(alone, "b:1") == about(0.6, 30.0, 0.1)


def test_the_difference_survives_a_restart() -> None:
    pool, rng, learner, again = two_kinds(), Random(5), Learner(), two_kinds()
    for _ in range(4 * LEAST_SAMPLES):
        learner.observe(answer("a:1", rng), pool)
        learner.observe(answer("b:1", rng, SLOWER), pool)
    learner.settle(pool)
    written = b"".join(pieces(learner, now_s=0.0, unix_s=0.0))
    restore(msgspec.json.decode(written, type=LearnedState), Learner(), again, now_s=0.0, unix_s=0.0)
    assert (speed(again, "a:1"), speed(again, "b:1")) == (about(0.2, 10.0), about(0.6, 5.0))


def test_work_scaled_to_a_line_takes_as_long_by_it_as_the_engine_takes() -> None:
    line = Line(5.0, 0.1, 10.0, 0.02)
    work = Work(100.0, 1.0, 1000.0, 300.0, 50.0, 120.0, 40.0, 1.0, 0.0)
    assert line.ms(SLOWER.work(work)) == pytest.approx(SLOWER.line(line).ms(work))
