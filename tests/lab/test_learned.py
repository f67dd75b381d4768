"""The experiment's arithmetic: what a calibration is, and what the report says of what was learned."""

from __future__ import annotations

import pytest

from lab import learned
from lab.learned import CALIBRATED, Constants, Round, Whole


def new(prompt_tokens: int, *, late_ms: float = 0.0, slower: float = 1.0) -> Whole:
    """Of a server that takes 5 ms and 0.1 ms a prompt token."""
    return Whole(prompt_tokens, 1, slower * (5 + 0.1 * prompt_tokens) + late_ms)


def cached(prompt_tokens: int, token_ms: float) -> list[Whole]:
    """The same prompt twice, for answers of one token and of eleven."""
    return [Whole(prompt_tokens, 1, 6.0, is_cached=True), Whole(prompt_tokens, 11, 6.0 + 10 * token_ms, is_cached=True)]


def calibration(slower: float = 1.0) -> tuple[Whole, ...]:
    """Decoding takes 2 ms after a short context, and 4 after a long one."""
    decoded = cached(64, 2 * slower) + cached(1152, 4 * slower)
    return (*(new(length, slower=slower) for length in CALIBRATED), *decoded)


def test_a_calibration_is_of_slopes_and_not_of_fixed_costs_and_one_late_answer_moves_nothing() -> None:
    found = learned.calibrated([*calibration() * 3, new(64, late_ms=500)])
    assert found == pytest.approx((0.1, 3.0))


def test_the_report_says_whether_what_was_learned_is_near_the_calibration_of_its_time() -> None:
    rounds = [
        Round(calibration(), None),
        Round(calibration(), Constants(0.11, 4.5)),
        Round(calibration(slower=2.0), Constants(0.11, 4.5)),
        Round(calibration(slower=2.0), Constants(0.22, 9.0)),  # the machine was busier, for both alike
    ]
    text = learned.markdown("", {"vllm:m": rounds, "sglang:m": rounds[:1]})
    assert "| vllm:m | prefill | 0.1000 | 0.1100 | +10% (+10% to +10%) | yes |" in text
    assert "| vllm:m | decoding | 3.5000 | 4.5000 | +50% (+12% to +80%) | no |" in text
    assert "| sglang:m | prefill | 0.1000 | not learned |  | no |" in text
