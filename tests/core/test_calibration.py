"""Expected times against seen ones, by tenths of what was expected."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.core.calibration import KEPT, Calibration
from fairlead.core.observation import Observation
from fairlead.core.policy import Decision
from tests.core.world import World


def decided(tokens: int = 1000) -> Decision:
    world = World()
    world.endpoint("a:1", prefill_ms_per_token=0.1, decode_ms_per_token=10.0)
    return world.pick(tokens=tokens)


def seen(first_token_ms: float | None = 100.0, **fields: object) -> Observation:
    fields = {"decode_ms": 990.0, "completion_tokens": 100, **fields}
    return Observation("a:1", "m", 1000, 0, 0.0, first_token_ms=first_token_ms, **fields)  # type: ignore[arg-type]


def test_tenths_are_of_what_was_expected() -> None:
    calibration = Calibration()
    for tokens in range(1000, 11_000, 100):
        calibration.observed(decided(tokens), seen(2 * 0.1 * tokens))
    calibration.settle()
    tenths = calibration.tenths()["m", "first_token"]
    assert [tenth.answers for tenth in tenths] == [10] * 10
    assert tenths[0].expected_ms == pytest.approx(145.0)
    assert tenths[9].expected_ms == pytest.approx(1045.0)
    assert all(tenth.seen_p50_ms == pytest.approx(2 * tenth.expected_ms, rel=0.1) for tenth in tenths)
    assert all(tenth.in_time == 0.0 for tenth in tenths)
    assert calibration.tenths()["m", "pace"][0].expected_ms == pytest.approx(10.0)


def test_few_answers_and_those_that_show_nothing_of_the_choice_say_nothing() -> None:
    calibration = Calibration()
    for _ in range(9):
        calibration.observed(decided(), seen())
    for _ in range(20):
        calibration.observed(decided(), seen(None))
        calibration.observed(decided(), seen(direct=False))
        calibration.observed(decided(), seen(media=1))
        calibration.observed(decided(), seen(several=True))
        calibration.observed(decided(), msgspec.structs.replace(seen(), address="b:1"))
    calibration.settle()
    assert calibration.tenths() == {}


def test_only_the_last_answers_count() -> None:
    calibration, decision = Calibration(), decided()
    for first_token_ms in (*[1000.0] * 500, *[100.0] * KEPT):
        calibration.observed(decision, seen(first_token_ms))
        calibration.settle()
    assert {tenth.seen_p90_ms for tenth in calibration.tenths()["m", "first_token"]} == {100.0}
