"""What engines' own sums say of their speed, against simulated engines whose speed is known."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.endpoint import Endpoint, EndpointSpec
from fairlead.core.learning import Learner
from fairlead.core.observation import Observation
from fairlead.core.pool import Pool
from fairlead.core.reported import AnswerSums, EngineReport
from fairlead.core.reported_times import UNSAID, ReportedTimes, Times, of_model, times
from fairlead.engines.metrics_text import read_metrics
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_metrics import EngineMetrics
from fairlead.tools.simulate.engine_request import EngineRequest
from fairlead.tools.simulate.parameters import EngineParameters

SUMS = AnswerSums(answers=100, prefill_s=20.0, computed_tokens=100_000, decode_s=200.0, steps=10_000)
SPED = EngineParameters(prefill_ms_per_token=0.2, num_blocks=60_000)  # and 13.2 ms for a step alone


def served(kind: str, per_s: float, for_s: float = 120.0) -> tuple[AnswerSums, float]:
    """The sums of an engine with traffic, as its page tells them, and how long it lasted."""
    rng, engine, now_ms, asked = Random(3), Engine(SPED), 0.0, 0
    while now_ms < for_s * 1e3:
        now_ms += rng.expovariate(per_s) * 1e3
        while (due_ms := engine.next_step_ms()) is not None and due_ms <= now_ms:
            engine.step(due_ms)
        prompt, answer = max(16, int(rng.lognormvariate(6.5, 0.7))), max(2, int(rng.lognormvariate(4.5, 0.5)))
        engine.submit(EngineRequest(str(asked), prompt, answer), now_ms)
        asked += 1
    report = read_metrics(EngineMetrics(kind, "m", engine).page(), 0.0)
    assert report is not None
    assert report.sums is not None
    return report.sums, now_ms / 1e3


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("per_s", [0.5, 1.0, 2.0, 3.0])  # up to two thirds of what it can serve
def test_times_of_an_engine_alone_follow_from_its_sums_under_load(kind: str, per_s: float) -> None:
    found = times(*served(kind, per_s))
    assert found.prefill_ms == pytest.approx(0.2, rel=0.15)
    assert found.decode_ms == pytest.approx(13.2, rel=0.3)


def test_without_knowing_how_long_they_took_answers_are_taken_not_to_overlap() -> None:
    assert tuple(times(SUMS)) == pytest.approx((0.2, 20.0))


@pytest.mark.parametrize(
    ("odd", "left"),
    [
        ({"answers": 15}, set()),
        ({"prefill_s": None}, {"decode_ms"}),
        ({"computed_tokens": None}, {"decode_ms"}),
        ({"computed_tokens": 0}, {"decode_ms"}),
        ({"computed_tokens": 1000}, {"decode_ms"}),  # prompts that came as KV, or fixed costs
        ({"prefill_s": 0.0}, {"decode_ms"}),
        ({"prefill_s": 1e18}, {"decode_ms"}),
        ({"computed_tokens": 10**17}, {"decode_ms"}),
        ({"decode_s": None}, {"prefill_ms"}),
        ({"steps": 3}, {"prefill_ms"}),
        ({"decode_s": 1e18}, {"prefill_ms"}),
    ],
)
def test_sums_that_say_nothing_or_what_cannot_be_are_left_out(odd: dict[str, Any], left: set[str]) -> None:
    found = times(msgspec.structs.replace(SUMS, **odd))
    assert {name for name, ms in found._asdict().items() if ms is not None} == left


def look(reports: ReportedTimes, endpoint: Endpoint, sums: AnswerSums, read_s: float) -> bool:
    endpoint.report = EngineReport(sums=sums, read_s=read_s)
    return reports.look(endpoint)


def scaled(by: float) -> AnswerSums:
    return AnswerSums(int(100 * by), 20.0 * by, int(100_000 * by), 200.0 * by, int(10_000 * by))


def test_an_engine_is_judged_by_its_whole_life_at_first_and_then_by_half_a_minute_at_a_time() -> None:
    reports, endpoint = ReportedTimes(), Endpoint(EndpointSpec("a:1", "m"))
    assert look(reports, endpoint, scaled(10), 5.0)
    assert reports.value.prefill_ms == pytest.approx(0.2)
    slower = AnswerSums(1100, 260.0, 1_100_000, 2000.0, 110_000)
    assert not look(reports, endpoint, slower, 34.0)
    assert look(reports, endpoint, slower, 2005.0)
    assert reports.value.prefill_ms == pytest.approx(0.6 / (1 + 60 / 2000))
    assert reports.value.decode_ms == pytest.approx(20.0)  # nothing was added


def test_a_few_answers_are_waited_for_to_be_more() -> None:
    reports, endpoint = ReportedTimes(), Endpoint(EndpointSpec("a:1", "m"))
    look(reports, endpoint, scaled(10), 5.0)
    few = AnswerSums(1010, 800.0, 1_010_000, 2000.0, 100_000)
    assert not look(reports, endpoint, few, 100.0)


def test_an_engine_that_restarted_begins_anew_and_keeps_what_it_said_until_it_says_more() -> None:
    reports, endpoint = ReportedTimes(), Endpoint(EndpointSpec("a:1", "m"))
    look(reports, endpoint, scaled(10), 5.0)
    endpoint.generation += 1
    assert not look(reports, endpoint, AnswerSums(2, 9.0, 2000, 9.0, 20), 100.0)
    assert reports.value.prefill_ms == pytest.approx(0.2)
    assert look(reports, endpoint, AnswerSums(102, 69.0, 102_000, 209.0, 10_020), 3000.0)
    assert reports.value.prefill_ms == pytest.approx(0.6, rel=0.05)


def test_a_page_that_lacks_a_part_for_once_does_not_put_a_whole_life_into_one_window() -> None:
    reports, endpoint = ReportedTimes(), Endpoint(EndpointSpec("a:1", "m"))
    look(reports, endpoint, scaled(10), 0.0)
    look(reports, endpoint, AnswerSums(1100, None, 1_100_000, 2200.0, 110_000), 4000.0)
    look(reports, endpoint, scaled(12), 8000.0)
    assert reports.value.prefill_ms == pytest.approx(0.2)


amounts = st.one_of(st.none(), st.integers(0, 10**18))
any_sums = st.builds(AnswerSums, st.integers(0, 10**18), amounts, amounts, amounts, amounts, st.integers(1, 64))


@given(st.lists(st.tuples(any_sums, st.floats(0, 1e6)), max_size=8))
def test_whatever_an_engine_says_a_time_is_one_that_an_accelerator_can_have(
    pages: list[tuple[AnswerSums, float]],
) -> None:
    reports, endpoint, now_s = ReportedTimes(), Endpoint(EndpointSpec("a:1", "m")), 0.0
    for sums, later_s in pages:
        now_s += later_s
        look(reports, endpoint, sums, now_s)
        assert all(each is None or 1e-4 <= each <= 1e4 for each in reports.value)


def test_equal_engines_are_not_told_apart_by_the_load_that_they_had() -> None:
    plain = EndpointSpec("a:1", "m")
    found = of_model([(plain, Times(0.2, 20.0)), (plain, Times(0.3, 25.0)), (plain, Times(3.0, None)), (plain, UNSAID)])
    assert found == Times(0.3, 22.5)


def pool_of(*specs: EndpointSpec) -> tuple[Pool, Learner]:
    endpoints = [Endpoint(spec) for spec in specs]
    for each in endpoints:
        each.report = EngineReport(sums=SUMS, read_s=1.0)
    pool, learner = Pool(endpoints, {}), Learner()
    learner.read_reports(pool)
    return pool, learner


def in_force(endpoint: Endpoint) -> tuple[float, float]:
    return endpoint.speed.prefill_ms_per_token, endpoint.speed.decode_ms_per_token


def test_until_an_answer_was_seen_a_model_has_the_times_that_its_engines_say() -> None:
    pool, _ = pool_of(EndpointSpec("a:1", "m"), EndpointSpec("b:1", "m"))
    assert [in_force(endpoint) for endpoint in pool.endpoints] == [pytest.approx((0.2, 20.0))] * 2


def test_what_answers_show_counts_for_more_than_what_engines_say() -> None:
    pool, learner = pool_of(EndpointSpec("a:1", "m"))
    for n in range(20):
        seen = Observation("a:1", "m", 1000, 0, 0.0, 90.0 + 50 * (n % 2), decode_ms=700.0, ended_s=float(n))
        tokens = 1000 + 500 * (n % 2)
        learner.observe(
            msgspec.structs.replace(seen, prompt_tokens=tokens, cached_tokens=0, completion_tokens=101), pool
        )
    learner.settle(pool)
    learner.read_reports(pool)
    assert in_force(pool.endpoints[0]) == pytest.approx((0.1, 7.0), rel=0.15)


def test_what_is_configured_counts_for_more_than_what_engines_say() -> None:
    pool, _ = pool_of(EndpointSpec("a:1", "m", prefill_ms_per_token=0.7, prefill_configured=True))
    assert in_force(pool.endpoints[0]) == pytest.approx((0.7, 20.0))


def test_an_engine_that_says_nothing_is_taken_to_be_like_the_others_of_its_model() -> None:
    silent = Endpoint(EndpointSpec("c:1", "m"))
    pool, learner = pool_of(EndpointSpec("a:1", "m"))
    pool = Pool([*pool.endpoints, silent], {})
    learner.apply(pool.endpoints)
    assert silent.speed.prefill_ms_per_token == pytest.approx(0.2)


def test_what_engines_of_a_model_said_goes_when_the_last_of_them_does() -> None:
    pool, learner = pool_of(EndpointSpec("a:1", "m"), EndpointSpec("b:1", "other"))
    learner.forget_all_but([pool.by_address["b:1"]])
    assert list(learner.reported) == ["other"]
