"""Calibration: parameters come back from what they made, and errors are of cases that the fit did not see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.errors import UserError
from fairlead.tools.replay.calibration import Case, calibrate, fit, run
from fairlead.tools.replay.lines import Line
from fairlead.tools.simulate.parameters import EngineParameters

TRUE = EngineParameters(
    prefill_ms_per_token=0.2, decode_ms_per_step=9.0, decode_ms_per_sequence=0.4, step_overhead_ms=3.0
)
LOADS = [(128, 64, 1), (512, 64, 1), (1024, 64, 1), (4096, 64, 1), (512, 64, 4), (512, 64, 8), (256, 64, 16)]


def measured(*, true: EngineParameters = TRUE, factor: float = 1.0, only: slice = slice(None)) -> list[Line]:
    """What an engine with the `true` parameters takes for LOADS; the first case by `factor` of that."""
    rows = []
    for number, load in enumerate(LOADS[only]):
        case = run(true, Case(*load, 0.0, 0.0, 0.0))
        first_ms = case.first_token_ms * (factor if number == 0 else 1.0)
        total_ms = case.total_ms - case.first_token_ms + first_ms
        names = ("prompt_size", "token_size", "batch_size", "prompt_time", "token_time", "e2e_time")
        values = dict(zip(names, (*load, first_ms, case.token_ms, total_ms), strict=True))
        rows.append(Line(Path("m.csv"), number + 2, {"model": "x", "hardware": "y", "tensor_parallel": 2, **values}))
    return rows


def test_an_engine_s_parameters_come_back_from_its_times() -> None:
    (found,) = calibrate(measured()).values()
    fitted = found.parameters()
    for name in ("prefill_ms_per_token", "decode_ms_per_step", "decode_ms_per_sequence", "step_overhead_ms"):
        assert getattr(fitted, name) == pytest.approx(getattr(TRUE, name), rel=0.02)
    assert found.total_error.worst_tenth < 0.02


def test_what_first_tokens_cost_beyond_a_step_is_the_request_s_own() -> None:
    """As of vLLM on a CPU, whose decoding step is hardly more than its overhead."""
    true = replace(TRUE, decode_ms_per_step=0.0, step_overhead_ms=2.0, request_overhead_ms=6.0)
    (found,) = calibrate(measured(true=true)).values()
    fitted = found.parameters()
    for name in ("prefill_ms_per_token", "decode_ms_per_sequence", "step_overhead_ms", "request_overhead_ms"):
        assert getattr(fitted, name) == pytest.approx(getattr(true, name), rel=0.02)
    assert found.first_token_error.worst_tenth < 0.02


def test_a_request_s_own_cost_is_that_of_a_step_while_a_step_costs_more() -> None:
    """They cannot be told apart then; a request alone takes as long either way."""
    true = replace(TRUE, request_overhead_ms=5.0)
    (found,) = calibrate(measured(true=true)).values()
    assert found.request_overhead_ms == 0.0
    alone = Case(2048, 64, 1, 0.0, 0.0, 0.0)
    assert run(found.parameters(), alone).first_token_ms == pytest.approx(run(true, alone).first_token_ms, rel=0.01)


def test_batches_alone_are_enough() -> None:
    (found,) = calibrate(measured(only=slice(3, None))).values()
    assert found.parameters().prefill_ms_per_token == pytest.approx(TRUE.prefill_ms_per_token, rel=0.15)


def test_engines_are_named_by_model_hardware_and_parallelism() -> None:
    assert list(calibrate(measured())) == ["x-y-tp2"]


def test_the_error_of_a_case_is_of_a_fit_without_it() -> None:
    """One case is measured at twice its time: the fit that sees it may bend to it, but is not judged by it."""
    (found,) = calibrate(measured(factor=2.0)).values()
    assert found.first_token_error.worst_tenth >= 0.2


def test_rows_whose_total_contradicts_their_parts_are_left_out_and_counted() -> None:
    rows = measured()
    rows.append(Line(Path("m.csv"), 99, {**rows[0].values, "prompt_size": 9, "e2e_time": 1e6}))
    (found,) = calibrate(rows).values()
    assert (found.cases, found.contradictory_rows) == (len(LOADS), 1)


def test_too_few_cases_are_refused() -> None:
    with pytest.raises(UserError, match="x-y-tp2: 3 different cases are too few"):
        calibrate(measured(only=slice(3)))


def test_a_row_without_a_time_is_named() -> None:
    row = Line(Path("m.csv"), 7, {"prompt_size": 1, "token_size": 1, "batch_size": 1})
    with pytest.raises(UserError, match=r"^m\.csv:7: prompt_time is missing"):
        calibrate([row])


def test_a_decoding_step_is_never_shorter_than_its_overhead() -> None:
    cases = [Case(n, 10, 1, 100.0 + n, 5.0, 0.0) for n in (100, 200, 400, 800)]
    fitted = fit(cases)
    assert fitted.step_overhead_ms <= 5.0
    assert fitted.decode_ms_per_step >= 0
