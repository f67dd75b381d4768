"""Fit the simulated engine's parameters to measured times of a real one, and estimate the error.

Measurements are rows of one batch each: `prompt_size` and `token_size` tokens, `batch_size` requests at once,
`prompt_time`, `token_time` and `e2e_time` in ms, each the mean over the batch: the columns of splitwise-sim's
`perf_model.csv`. Rows whose total is not the sum of their parts are left out: the answer ended early, or a time is
wrong. A step's time is assumed linear in its prompt tokens and decoding requests, fitted to relative errors; long
prompts cost more than that on real hardware, as attention is quadratic. Errors are of the engine model run on each case
with parameters fitted without that case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec

from fairlead.errors import UserError
from fairlead.statistics import line_through, quantile
from fairlead.tools.replay.lines import Line
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_request import EngineRequest, EventKind
from fairlead.tools.simulate.parameters import EngineParameters

_LEAST_CASES: Final = 4
_TOTAL_TOLERANCE: Final = 0.1
_LEAST_OVERHEAD_MS: Final = 0.1
_LEAST_LEFT: Final = 0.1  # share of a measured time that remains, however much waiting the model subtracts
_DECIMALS: Final = 5


class Case(NamedTuple):
    """One way to load an engine, and the median times measured."""

    prompt_tokens: int
    output_tokens: int
    batch: int
    first_token_ms: float
    token_ms: float
    total_ms: float


class Error(msgspec.Struct, frozen=True):
    """Absolute error relative to the measured value, over the cases."""

    median: float
    worst_tenth: float  # 90th percentile


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: parameters in ms, and their errors for first tokens, further tokens and whole answers."""

    prefill_ms_per_token: float
    decode_ms_per_step: float
    decode_ms_per_sequence: float
    step_overhead_ms: float
    request_overhead_ms: float = 0.0  # older files do not have it
    cases: int
    contradictory_rows: int  # number of rows left out
    first_token_error: Error
    token_error: Error
    total_error: Error

    def parameters(self) -> EngineParameters:
        return EngineParameters(
            prefill_ms_per_token=self.prefill_ms_per_token,
            decode_ms_per_step=self.decode_ms_per_step,
            decode_ms_per_sequence=self.decode_ms_per_sequence,
            step_overhead_ms=self.step_overhead_ms,
            request_overhead_ms=self.request_overhead_ms,
        )


class _Rows:
    """The measurements of one engine."""

    def __init__(self) -> None:
        self.by_case: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        self.contradictory = 0

    def add(self, line: Line) -> None:
        prompt_tokens, output_tokens, batch = (
            line.tokens(name) for name in ("prompt_size", "token_size", "batch_size")
        )
        first_ms, token_ms, total_ms = (line.number(f"{name}_time", least=1e-6) for name in ("prompt", "token", "e2e"))
        if abs(first_ms + token_ms * (output_tokens - 1) - total_ms) > _TOTAL_TOLERANCE * total_ms:
            self.contradictory += 1
            return
        self.by_case.setdefault((prompt_tokens, output_tokens, batch), []).append((first_ms, token_ms))

    def cases(self) -> list[Case]:
        found = []
        for (prompt_tokens, output_tokens, batch), times in self.by_case.items():
            first_ms, token_ms = (median(column) for column in zip(*times, strict=True))
            total_ms = first_ms + token_ms * (output_tokens - 1)
            found.append(Case(prompt_tokens, output_tokens, batch, first_ms, token_ms, total_ms))
        return found


class CalibrationFile(msgspec.Struct, frozen=True):
    """Engines by name, and the source of their measurements."""

    source: str
    engines: dict[str, Calibrated]


def calibrate(lines: Iterable[Line]) -> dict[str, Calibrated]:
    """Engines by name: model, hardware and tensor parallelism, as far as these columns exist.

    Raises UserError for an impossible row, and for an engine with too few different cases.
    """
    measured: dict[str, _Rows] = {}
    for line in lines:
        parts = [line.text("model"), line.text("hardware")]
        if (parallel := line.text("tensor_parallel")) is not None:
            parts.append(f"tp{parallel}")
        name = "-".join(part for part in parts if part) or "engine"
        measured.setdefault(name, _Rows()).add(line)
    return {name: _calibrated(name, rows) for name, rows in sorted(measured.items())}


def _calibrated(name: str, rows: _Rows) -> Calibrated:
    cases = rows.cases()
    if len(cases) < _LEAST_CASES:
        raise UserError(f"{name}: {len(cases)} different cases are too few to fit; measure at least {_LEAST_CASES}")
    errors: list[tuple[float, float, float]] = []
    for left_out in cases:
        fitted = fit([case for case in cases if case is not left_out])
        predicted = run(fitted, left_out)
        errors.append(
            (
                abs(predicted.first_token_ms / left_out.first_token_ms - 1),
                abs(predicted.token_ms / left_out.token_ms - 1),
                abs(predicted.total_ms / left_out.total_ms - 1),
            )
        )
    parameters = fit(cases)
    first_token, token, total = (_error(column) for column in zip(*errors, strict=True))
    return Calibrated(
        prefill_ms_per_token=round(parameters.prefill_ms_per_token, _DECIMALS),
        decode_ms_per_step=round(parameters.decode_ms_per_step, _DECIMALS),
        decode_ms_per_sequence=round(parameters.decode_ms_per_sequence, _DECIMALS),
        step_overhead_ms=round(parameters.step_overhead_ms, _DECIMALS),
        request_overhead_ms=round(parameters.request_overhead_ms, _DECIMALS),
        cases=len(cases),
        contradictory_rows=rows.contradictory,
        first_token_error=first_token,
        token_error=token,
        total_error=total,
    )


def _error(shares: Sequence[float]) -> Error:
    return Error(round(median(shares), 4), round(quantile(shares, 0.9), 4))


def fit(cases: Sequence[Case]) -> EngineParameters:
    """Straight lines through first tokens and through tokens; those of an engine that is one come back exactly.

    First tokens are taken from requests that had the engine to themselves, if these had prompts of two sizes: waiting
    inside a batch is not linear. The waiting time of their tokens is simulated with the parameters of a first fit, and
    subtracted for the second.
    """
    alone = [case for case in cases if case.batch == 1]
    if len({case.prompt_tokens for case in alone}) < 2:
        alone = list(cases)
    first_tokens = line_of([(case.prompt_tokens * case.batch, case.first_token_ms) for case in alone])
    rough = from_lines(first_tokens, line_of([(case.batch, case.token_ms) for case in cases]))
    tokens = []
    for case in cases:
        waiting_ms = run(rough, case).token_ms - rough.decoding_step_ms(case.batch)
        tokens.append((case.batch, max(case.token_ms - waiting_ms, _LEAST_LEFT * case.token_ms)))
    return from_lines(first_tokens, line_of(tokens))


def from_lines(first_tokens: tuple[float, float], tokens: tuple[float, float]) -> EngineParameters:
    """From intercepts and slopes, in ms.

    A decoding step bounds how much of a first token's fixed time can belong to a step. The rest belongs to the request;
    if there is no rest, the two cannot be separated.
    """
    (fixed_ms, prefill_ms), (step_ms, sequence_ms) = first_tokens, tokens
    overhead_ms = max(_LEAST_OVERHEAD_MS, min(fixed_ms, step_ms))
    return EngineParameters(
        prefill_ms_per_token=max(0.0, prefill_ms),
        decode_ms_per_step=max(0.0, step_ms - overhead_ms),
        decode_ms_per_sequence=max(0.0, sequence_ms),
        step_overhead_ms=overhead_ms,
        request_overhead_ms=max(0.0, fixed_ms - overhead_ms),
    )


def run(parameters: EngineParameters, case: Case) -> Case:
    """The times of `case` on the simulated engine."""
    tokens = (case.prompt_tokens + case.output_tokens) * case.batch
    blocks = -(-tokens // parameters.block_size) + case.batch
    engine = Engine(replace(parameters, num_blocks=blocks, max_model_len=max(tokens, 1)))
    for number in range(case.batch):
        engine.submit(EngineRequest(str(number), case.prompt_tokens, case.output_tokens), 0.0)
    times_ms: dict[EventKind, list[float]] = {kind: [] for kind in EventKind}
    while (now_ms := engine.next_step_ms()) is not None:
        for event in engine.step(now_ms):
            times_ms[event.kind].append(now_ms)
    first_ms, total_ms = fmean(times_ms[EventKind.FIRST_TOKEN]), fmean(times_ms[EventKind.FINISHED])
    token_ms = (total_ms - first_ms) / max(1, case.output_tokens - 1)
    return case._replace(first_token_ms=first_ms, token_ms=token_ms, total_ms=total_ms)


def line_of(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of least squares of relative errors; flat where all points have one x."""
    return line_through(points, [1 / (y * y) for _, y in points])
