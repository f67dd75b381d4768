"""What was learned goes on in the next process, and a file of anything else changes nothing."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api.usage import MOST_TOKENS
from fairlead.core.learned_state import LearnedState, pieces, restore
from fairlead.core.learning import Learner
from fairlead.core.pool import Pool
from tests.core.test_learning import PROSE, learn, of_all_lengths, seen
from tests.core.world import make_endpoint


def new_pool() -> Pool:
    return Pool([make_endpoint("a:1", "m"), make_endpoint("b:1", "m"), make_endpoint("c:1", "other")], {})


def through_a_file(learner: Learner, *, now_s: float = 100.0, unix_s: float = 5000.0) -> LearnedState:
    written = b"".join(pieces(learner, now_s=now_s, unix_s=unix_s))
    return msgspec.json.decode(written, type=LearnedState)


def test_every_constant_is_as_it_was() -> None:
    before, after, learner = new_pool(), new_pool(), Learner()
    slow = seen(address="b:1", first_token_ms=610.0, decode_ms=2970.0, prompt_tokens=1300)
    learned = learn(before, *[seen(completion_tokens=90, prompt_tokens=1300), slow] * 40)
    restore(through_a_file(learned), learner, after, now_s=0.0, unix_s=5000.0)
    for was, is_now in zip(before.endpoints, after.endpoints, strict=True):
        for name in was.speed.__struct_fields__:
            assert getattr(is_now.speed, name) == pytest.approx(getattr(was.speed, name), rel=0.02)
    assert learner.rates("m", after)[PROSE] == pytest.approx(1.3, rel=0.02)


def test_how_prefill_grows_is_kept() -> None:
    learner, pool = Learner(), new_pool()
    learned = learn(new_pool(), *of_all_lengths(60, 6e-5))
    restore(through_a_file(learned), learner, pool, now_s=0.0, unix_s=5000.0)
    assert pool.endpoints[1].speed.prefill_growth == pytest.approx(6e-5, rel=0.1)


def test_a_file_of_before_there_was_growth_is_read() -> None:
    learner, pool = Learner(), new_pool()
    learned = learn(new_pool(), *[seen()] * 10)
    written = msgspec.json.decode(b"".join(pieces(learned, now_s=100.0, unix_s=5000.0)))
    del written["models"]["m"]["prefill_growth"]
    written["models"]["m"]["works"] = [work[:9] for work in written["models"]["m"]["works"]]
    restore(msgspec.convert(written, LearnedState), learner, pool, now_s=0.0, unix_s=5000.0)
    assert pool.endpoints[1].speed.prefill_ms_per_token == pytest.approx(0.2)


@pytest.mark.parametrize("odd", ["prompt_tokens", "completion_tokens", "queued_tokens", "prefilled_tokens"])
def test_the_oddest_counts_that_are_read_of_an_answer_do_not_make_the_file_unreadable(odd: str) -> None:
    learner, pool = Learner(), new_pool()
    learned = learn(new_pool(), *[seen()] * 20, seen(**{odd: MOST_TOKENS}), *[seen()] * 3)
    restore(through_a_file(learned), learner, pool, now_s=0.0, unix_s=5000.0)
    assert pool.endpoints[0].speed.prefill_ms_per_token == pytest.approx(0.2, rel=0.05)


def test_the_age_of_what_was_learned_counts_the_time_in_between() -> None:
    learner, pool = Learner(), new_pool()
    learned = learn(new_pool(), *[seen(ended_s=90.0, decode_ms=None)] * 10)
    restore(through_a_file(learned, now_s=100.0, unix_s=5000.0), learner, pool, now_s=7.0, unix_s=5060.0)
    since_s = learner.models["m"].since_s
    assert since_s == pytest.approx(7.0 - 70.0)


def test_what_it_knows_of_endpoints_that_left_is_left_out() -> None:
    learner, pool = Learner(), Pool([make_endpoint("a:1", "m")], {})
    learned = learn(new_pool(), *[seen(), seen(address="b:1")] * 10, *[seen(address="c:1", model="other")] * 10)
    restore(through_a_file(learned), learner, pool, now_s=0.0, unix_s=5000.0)
    assert (list(learner.models), list(learner.engines)) == (["m"], [("a:1", "m")])


def test_an_engine_of_another_model_than_before_starts_anew() -> None:
    learner, pool = Learner(), Pool([make_endpoint("a:1", "other")], {})
    restore(through_a_file(learn(new_pool(), *[seen()] * 10)), learner, pool, now_s=0.0, unix_s=5000.0)
    assert pool.endpoints[0].speed.prefill_ms_per_token == 0.1


def test_an_engine_is_a_part_of_its_own_so_that_no_part_takes_long() -> None:
    pool = Pool([make_endpoint(f"a:{number}", f'"engines":[{number % 3}') for number in range(50)], {})
    learned = learn(pool, *[seen(address=e.address, model=e.model) for e in pool.endpoints for _ in range(3)])
    parts = list(pieces(learned, now_s=1.0, unix_s=2.0, draining={"a:2", "a:1"}))
    assert len(parts) == 50 + 3 + 3 + 4
    state = msgspec.json.decode(b"".join(parts), type=LearnedState)
    assert [each.address for each in state.engines] == [e.address for e in pool.endpoints]
    assert set(state.models) == set(state.tokens) == set(pool.models)
    assert (state.clock_s, state.saved_at, state.draining) == (1.0, 2.0, ["a:1", "a:2"])
