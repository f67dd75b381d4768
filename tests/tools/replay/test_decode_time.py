"""The line that decoding follows: alone, alongside other requests, and under others' prompts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.endpoint import USUAL_SLOWDOWN
from fairlead.tools.replay.decode_time import DecodeLine, DecodeTime, Sample


def learned(*samples: tuple[float, float, float]) -> DecodeLine:
    time = DecodeTime(101)
    for one in samples:
        time.add(Sample(*one))
    return time.line(prefill_ms_per_token=0.1)


def test_loads_that_differ_show_what_each_request_adds() -> None:
    line = learned(*[(n, 0.0, 20.0 + 2.0 * n) for n in range(40)])
    assert line.alone_ms == pytest.approx(20.0, rel=0.1)
    assert line.slowdown == pytest.approx(0.1, rel=0.2)


def test_under_one_load_each_request_adds_what_is_usual() -> None:
    line = learned(*[(10.0, 0.0, 23.0)] * 20)
    assert line.slowdown == pytest.approx(USUAL_SLOWDOWN, rel=0.01)
    assert line.alone_ms * (1 + 10 * line.slowdown) == pytest.approx(23.0)


def test_prompts_that_come_with_the_load_are_not_taken_for_a_dear_batch() -> None:
    rng = Random(1)
    loads = [(n, 10.0 * n * rng.random()) for n in range(100)]
    line = learned(*[(n, prefilled, 20.0 + 0.2 * n + 0.3 * prefilled) for n, prefilled in loads])
    assert line.slowdown < 0.02
    assert line.prefill_ms == pytest.approx(0.3, rel=0.2)


def test_a_few_answers_that_met_something_else_change_little() -> None:
    usual = [(n, 0.0, 20.0 + 2.0 * n) for n in range(40)]
    line = learned(*usual, *[(20.0, 0.0, 5000.0)] * 5)
    assert line.alone_ms == pytest.approx(20.0, rel=0.2)


def test_requests_that_quicken_each_other_are_an_accident() -> None:
    assert learned(*[(n, 0.0, 100.0 - n) for n in range(40)]).slowdown == 0.0


SAMPLE = st.tuples(st.floats(0, 1e3), st.floats(0, 1e6), st.floats(1e-3, 1e6))


@given(st.lists(SAMPLE, min_size=1, max_size=200))
def test_whatever_was_seen_time_alone_is_positive_and_requests_at_most_take_turns(
    samples: list[tuple[float, float, float]],
) -> None:
    line = learned(*samples)
    assert line.alone_ms > 0
    assert 0 <= line.slowdown <= 1
    assert line.prefill_ms >= 0
