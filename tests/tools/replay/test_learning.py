"""What a sidecar learns of simulated engines by watching its own traffic, with what a default vLLM tells and no more.

The engines are the simulator's, the learner is the one that serves, and the clock is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fairlead.core.endpoint import Endpoint
from fairlead.tools.simulate.parameters import EngineParameters
from tests.tools.replay.learning_world import Learning, conversations, learning

FAST = EngineParameters()
SLOW = EngineParameters(prefill_ms_per_token=0.8, decode_ms_per_step=30.0)  # the defaults are 8 times too low
THRICE = EngineParameters(
    prefill_ms_per_token=0.3, decode_ms_per_step=36.0, decode_ms_per_sequence=0.6, step_overhead_ms=3.0
)


class InOnePiece(Learning):
    streamed = False


class Reporting(Learning):
    reports_cache = True


def times(endpoint: Endpoint) -> tuple[float, float]:
    return endpoint.speed.prefill_ms_per_token, endpoint.speed.decode_ms_per_token


def true(engine: EngineParameters) -> tuple[float, float]:
    return engine.prefill_ms_per_token, engine.decoding_step_ms(1)


@pytest.mark.parametrize("kind", [Learning, InOnePiece, Reporting])
@pytest.mark.parametrize(("engine", "per_second"), [(FAST, 2.0), (SLOW, 0.5)])
def test_any_engine_s_times_are_learned_from_a_hundred_answers(
    kind: type[Learning], engine: EngineParameters, per_second: float
) -> None:
    """Streams and whole answers; where cached tokens are reported and where they never are."""
    world = learning([engine] * 2, conversations(60, per_second, turns=3), kind=kind)
    world.begin()
    assert times(world.endpoints[0]) == pytest.approx(true(engine), rel=0.2)


@pytest.mark.parametrize("kind", [Learning, InOnePiece])
def test_one_model_on_two_kinds_of_accelerator_has_two_speeds(kind: type[Learning]) -> None:
    world = learning([FAST, THRICE], conversations(400, 3.0), kind=kind)
    world.begin()
    assert [times(endpoint) for endpoint in world.endpoints] == [
        pytest.approx(true(engine), rel=0.2) for engine in (FAST, THRICE)
    ]


@pytest.mark.parametrize("kind", [Learning, InOnePiece])
def test_an_engine_that_becomes_three_times_slower_is_noticed_in_thirty_answers_or_a_minute(
    kind: type[Learning],
) -> None:
    """At 4 requests a second, with the default budget. It gets few requests then, and what is known of it fades until
    it gets another one: so what is looked at is what is known when it has just answered.
    """
    world = learning([FAST] * 4, conversations(1200, 4.0), kind=kind)
    noticed: list[tuple[float, int]] = []
    shown: list[tuple[float, float]] = []
    others: list[tuple[float, float]] = []
    before, known, answered_s = 0, 0, 0.0

    def look(now_s: float, endpoints: Sequence[Endpoint]) -> None:
        nonlocal before, known, answered_s
        answers = sum(seen.address == endpoints[0].address for seen in world.seen)
        if now_s == 60.0:
            world.slow_down(0, 3.0)
            before = answers
        prefill, decode = times(endpoints[0])
        if answers > known:
            known, answered_s = answers, now_s
        if now_s > 60.0 and not noticed and prefill > 0.2 and decode > 26.0:
            noticed.append((now_s - 60.0, answers - before))
        if noticed and now_s - answered_s < 3.0:
            shown.append((prefill, decode))
        if now_s > 120.0:
            others.extend(map(times, endpoints[1:]))

    world.begin(look)
    after_s, answers = noticed[0]
    assert after_s <= 60.0 or answers <= 30
    assert shown[-1] == pytest.approx(true(THRICE), rel=0.25)
    assert len(others) > 300
    for other in others:
        assert other == pytest.approx(true(FAST), rel=0.2), "nothing became of the others"


@pytest.mark.parametrize("kind", [Learning, InOnePiece])
@pytest.mark.parametrize("slower", [(1.0, 3.0), (1.0, 1.0, 3.0, 3.0)])
def test_how_fast_the_fast_ones_are_is_learned_where_nobody_said_that_engines_differ(
    kind: type[Learning], slower: Sequence[float]
) -> None:
    """They do most of the work: it has prompts of others in it, and answers that say the same."""
    world = learning([FAST] * len(slower), conversations(900, 2.0), kind=kind)
    for place, times_as_slow in enumerate(slower):
        world.slow_down(place, times_as_slow)
    known: list[tuple[float, float]] = []

    def look(now_s: float, endpoints: Sequence[Endpoint]) -> None:
        if now_s > 120.0:
            known.extend(times(e) for e, times_as_slow in zip(endpoints, slower, strict=True) if times_as_slow == 1.0)

    world.begin(look)
    assert len(known) > 300
    right = sum(one == pytest.approx(true(FAST), rel=0.2) for one in known)
    assert right > 0.98 * len(known)


@pytest.mark.parametrize(("per_second", "kv_tokens", "turns"), [(17.0, 500_000, 1), (5.0, 30_000, 5)])
def test_equal_engines_are_not_told_apart_at_saturation(per_second: float, kv_tokens: int, turns: int) -> None:
    """By prefill that is queued for, and by caches that are too small for what they serve."""
    traffic = conversations(int(60 * per_second), per_second, turns=turns)
    world = learning([FAST] * 4, traffic, kv_tokens=kv_tokens)
    apart, prefill_ms = [1.0], [0.1]

    def look(_: float, endpoints: Sequence[Endpoint]) -> None:
        apart.extend(max(speeds) / min(speeds) for speeds in zip(*map(times, endpoints), strict=True))
        prefill_ms.append(endpoints[0].speed.prefill_ms_per_token)

    world.begin(look)
    assert max(apart) <= 1.1
    assert (min(prefill_ms), max(prefill_ms)) == pytest.approx((0.1, 0.1), rel=0.2)


def test_sixteen_engines_warm_up_under_long_streams() -> None:
    """Of 250 parts each, which the budget of messages does not reach for: every engine gets its share."""
    world = learning([FAST] * 16, conversations(480, 4.0, answer=(240, 260)))
    world.begin()
    observed = {seen.address: 0 for seen in world.seen}
    for seen in world.seen:
        observed[seen.address] += 1
    assert len(observed) == 16
    assert min(observed.values()) >= 8
    assert all(times(endpoint) == pytest.approx(true(FAST), rel=0.2) for endpoint in world.endpoints)
