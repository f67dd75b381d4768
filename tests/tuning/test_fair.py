"""Windows compared with equal lengths: what is taken out is luck, and only luck."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.tuning.fair import LEAST_KNOWN, Sample, Timed, p95s_ms


def window(seed: int, *, delay_ms: float = 0.0, longer: float = 1.0, requests: int = 64, failed: float = 0.0) -> Sample:
    """Requests that wait some 500 ms and `delay_ms`, and then take 10 ms for each token; answers have many lengths."""
    rng = Random(seed)
    timed = []
    for _ in range(requests):
        prompt, output = rng.uniform(500, 20_000), longer * rng.lognormvariate(5.0, 0.8)
        wait_ms = rng.expovariate(1 / 500.0) + delay_ms
        timed.append(Timed(wait_ms + 0.02 * prompt + 10.0 * output, prompt, output))
    return Sample(tuple(timed), failed)


def test_windows_whose_answers_differ_only_in_length_are_alike() -> None:
    short, long = p95s_ms([window(1), window(2, longer=3.0)]) or (0.0, 0.0)
    assert long / short == pytest.approx(1.0, abs=0.05)


def test_a_delay_of_every_request_is_seen_whatever_the_lengths() -> None:
    quick, slow = p95s_ms([window(1, longer=2.0), window(2, delay_ms=1000.0)]) or (0.0, 0.0)
    assert slow - quick == pytest.approx(1000.0, rel=0.3)


def test_the_noise_between_like_windows_is_a_fraction_of_that_of_the_times_as_seen() -> None:
    seen, fair = [], []
    for seed in range(0, 80, 2):
        pair = [window(seed), window(seed + 1)]
        first, second = p95s_ms(pair) or (0.0, 0.0)
        fair.append(math.log(first / second))
        tails = [sorted(timed.total_ms for timed in sample.timed)[-4] for sample in pair]
        seen.append(math.log(tails[0] / tails[1]))
    assert sum(each * each for each in fair) < sum(each * each for each in seen) / 9


def test_with_too_few_known_lengths_nothing_is_taken_out() -> None:
    assert p95s_ms([window(1), window(2, requests=LEAST_KNOWN - 1)]) is None


def test_failures_move_the_p95_up_and_beyond_a_twentieth_to_infinity() -> None:
    none, some, many = p95s_ms([window(1), window(1, failed=0.03), window(1, failed=0.06)]) or (0.0, 0.0, 0.0)
    assert none < some < math.inf
    assert many == math.inf


def test_equal_lengths_are_no_trouble() -> None:
    samples = [Sample(tuple(Timed(100.0 + n, 1000.0, 10.0) for n in range(50)), 0.0)] * 2
    first, second = p95s_ms(samples) or (0.0, 0.0)
    assert first == second == pytest.approx(147.0, abs=1.0)


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.floats(0.0, 1e6)] * 3), min_size=40, max_size=80), st.integers(0, 2**32))
def test_a_window_is_as_fast_as_itself_in_another_order(rows: list[tuple[float, float, float]], seed: int) -> None:
    shuffled = Random(seed).sample(rows, len(rows))
    pair = [Sample(tuple(Timed(*row) for row in each), 0.0) for each in (rows, shuffled)]
    first, second = p95s_ms(pair) or (math.nan, math.nan)
    assert first == pytest.approx(second, rel=1e-6, abs=1e-3)
