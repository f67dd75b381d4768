"""The experiment's arithmetic: what a calibration is, and what the report says of what was learned."""

from __future__ import annotations

import pytest

from lab import learned
from lab.learned import OUTPUT_TOKENS, Constants, Round
from lab.streamed import Took


def took(prompt_tokens: int, *, late_ms: float = 0.0) -> Took:
    """Of a server that takes 5 ms, 0.1 ms a prompt token and 3 ms a token after the first."""
    first_token_ms = 5 + 0.1 * prompt_tokens + late_ms
    return Took(first_token_ms, first_token_ms + 3 * (OUTPUT_TOKENS - 1), prompt_tokens, 0, OUTPUT_TOKENS)


def test_a_calibration_is_the_slope_over_prompts_and_not_their_fixed_cost_and_one_late_answer_moves_nothing() -> None:
    found = learned.calibrated([*[took(each) for each in learned.CALIBRATED_TOKENS * 3], took(64, late_ms=500)])
    assert found == pytest.approx((0.1, 3.0))


def test_the_report_says_whether_what_was_learned_is_near_the_calibration_of_its_round() -> None:
    rounds = [
        Round(Constants(0.1, 3.0), None),
        Round(Constants(0.1, 3.0), Constants(0.11, 4.5)),
        Round(Constants(0.2, 6.0), Constants(0.22, 9.0)),  # the machine was busier, for both alike
    ]
    text = learned.markdown("", {"vllm:m": rounds, "sglang:m": rounds[:1]})
    assert "| vllm:m | prefill | 0.1000 | 0.1650 | +10% (+10% to +10%) | yes |" in text
    assert "| vllm:m | decoding | 3.0000 | 6.7500 | +50% (+50% to +50%) | no |" in text
    assert "| sglang:m | prefill | 0.1000 | not learned |  | no |" in text
