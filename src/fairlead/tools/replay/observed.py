"""From a decision log to a world: engine speeds fitted to the answers, round trips as probed.

The time of an answer's tokens is linear in how many requests decoded alongside and how many prompt tokens were computed
meanwhile (`decode_time`), and the log has both: when each answer began and ended at its engine, and how much of
its prompt was cached. So engines that were never idle are measured too. The fixed time of a first token is taken from
requests that had an engine to themselves, if there were any. The size of KV caches is not in a log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import msgspec
import polars as pl
import yaml

from fairlead.core.answer_times import LEAST_PREFILL_TOKENS
from fairlead.core.observation import LEAST_DECODE_TOKENS
from fairlead.errors import UserError
from fairlead.tools.replay.calibration import from_lines, line_of
from fairlead.tools.replay.decode_time import DecodeLine, DecodeTime, Sample
from fairlead.tools.simulate.parameters import EngineParameters

LEAST_ANSWERS: Final = 100  # for a model, or for an engine with its own constants
MOST_ANSWERS: Final = 20_000  # only the latest are used
COLUMNS: Final = (
    "at_s", "total_ms", "first_token_ms", "rtt_ms", "prompt_tokens", "cached_tokens", "expected_tokens",
    "queued_tokens", "output_tokens", "asked", "model", "endpoint", "code",
)  # fmt: skip
LEAST_ALONE: Final = 20
_OK: Final = 200
_CLIENT_LEFT: Final = 499
_ITSELF: Final = 1.001  # tolerance for a request alone in an interval: clocks are rounded
_LEAST_MS: Final = 0.01
_ROUNDS: Final = 4  # fixed-point iterations: prefill intervals depend on the fitted speed; it converges in two or three
_QUICK: Final = 0.1  # share of first tokens that waited least
_OWN_IS_BETTER: Final = 0.9  # an engine gets its own constants if their error is below this share of its model's
_DIGITS: Final = 4

_FITTED: Final = (
    "prefill_ms_per_token", "decode_ms_per_step", "decode_ms_per_sequence", "step_overhead_ms", "request_overhead_ms",
)  # fmt: skip


class SeenEngine(msgspec.Struct, frozen=True):
    """One endpoint: `error` is the median relative error of a token's time over `answers`."""

    address: str
    model: str
    rtt_ms: float
    parameters: EngineParameters
    answers: int
    error: float
    own: bool  # it has its own constants, because its answers took other times than its model's


class Observed(msgspec.Struct, frozen=True):
    """A pool as reconstructed from its decisions."""

    engines: tuple[SeenEngine, ...]
    routes: Mapping[str, tuple[str, ...]]


class _Answer(NamedTuple):
    """Times in ms since the log began. For answers not observed in full, the first token is a guess."""

    sent_ms: float
    first_ms: float
    end_ms: float
    uncached_tokens: int
    rtt_ms: float
    output_tokens: int | None  # None: not observed


class _Busy:
    """Time intervals that may overlap; gives how many ms of them lie before a time, or between two."""

    def __init__(self, stretches: Sequence[tuple[float, float]]) -> None:
        starts, ends = (sorted(times) for times in zip(*stretches, strict=True))
        self._edges = [(times, [0.0, *accumulate(times)]) for times in (starts, ends)]

    def between(self, from_ms: float, to_ms: float) -> float:
        return self._before(to_ms) - self._before(from_ms)

    def _before(self, now_ms: float) -> float:
        begun_ms, ended_ms = (self._since(now_ms, *edges) for edges in self._edges)
        return begun_ms - ended_ms

    @staticmethod
    def _since(now_ms: float, times: Sequence[float], sums: Sequence[float]) -> float:
        """The summed time since each of `times` that has passed."""
        passed = bisect_left(times, now_ms)
        return now_ms * passed - sums[passed]


def observed(decisions: pl.DataFrame, source: Path | str) -> Observed:
    """The pool of a log of all its requests. Raises UserError if too few answers of a model were observed in full.

    An engine gets its model's constants, or its own where these fit better.
    """
    rows = decisions.filter(pl.col("code").is_in([_OK, _CLIENT_LEFT]) & (pl.col("endpoint") != ""))
    by_address = {str(address): group for (address,), group in rows.group_by("endpoint", maintain_order=True)}
    answers = _answers(rows, by_address)
    models = {address: str(group["model"].mode().sort()[0]) for address, group in by_address.items()}
    usual: dict[str, EngineParameters] = {}
    for model in sorted(set(models.values())):
        alike = [answers[address] for address, served in models.items() if served == model]
        known = sum(_is_known(each) for engine in alike for each in engine)
        if known < LEAST_ANSWERS:
            raise UserError(
                f'{source}: of "{model}", {known} answers of more than {LEAST_DECODE_TOKENS} tokens were observed in '
                f"full, and {LEAST_ANSWERS} are needed; raise observe.answers_per_second, and let clients ask for "
                "usage (stream_options.include_usage)"
            )
        usual[model] = _fitted(alike)
    engines = tuple(
        _engine(address, models[address], answers[address], usual[models[address]]) for address in sorted(answers)
    )
    asked = rows.group_by("asked").agg(pl.col("model").unique().sort()).sort("asked")
    routes = {name: tuple(served) for name, served in asked.iter_rows() if name not in usual}
    return Observed(engines, routes)


def world_yaml(found: Observed, kv_tokens: int, comments: Sequence[str]) -> str:
    """A world file (`docs/replay.md`); regions have the names of the endpoints."""
    engines: dict[str, Any] = {}
    pool = []
    for engine in found.engines:
        name = engine.address if engine.own else engine.model
        constants = asdict(engine.parameters)
        engines[name] = {key: _short(constants[key]) for key in _FITTED} | {"kv_tokens": kv_tokens}
        pool.append({"engine": name, "model": engine.model, "region": engine.address})
    document = {
        "pool": pool,
        "engines": engines,
        "regions": {engine.address: _short(engine.rtt_ms) for engine in found.engines},
        "routes": {name: list(models) for name, models in found.routes.items()},
    }
    return "".join(f"# {comment}\n" for comment in comments) + yaml.safe_dump(document, sort_keys=False)


def _answers(rows: pl.DataFrame, by_address: Mapping[str, pl.DataFrame]) -> dict[str, list[_Answer]]:
    """Answers by address, in the order of their decisions."""
    begun_s = float(rows["at_s"].min() or 0.0)  # type: ignore[arg-type]  # of a column of floats
    cached = pl.coalesce("cached_tokens", "expected_tokens")
    uncached = pl.max_horizontal(pl.col("prompt_tokens") - cached, 0)
    before = uncached + pl.col("queued_tokens")
    waited = rows.select((pl.col("first_token_ms") - pl.col("rtt_ms")) / pl.when(before > 0).then(before)).to_series()
    waited_ms = float(waited.median() or 0.0)  # type: ignore[arg-type]  # for each token before the first one
    first_ms = pl.coalesce("first_token_ms", pl.col("rtt_ms") + waited_ms * before)
    whole = (pl.col("code") == _OK) & pl.all_horizontal(pl.col("first_token_ms", "cached_tokens").is_not_null())
    sent_ms = (pl.col("at_s") - begun_s) * 1e3
    columns = (
        sent_ms.alias("sent_ms"),
        (sent_ms + pl.min_horizontal(first_ms, "total_ms")).alias("first_ms"),
        (sent_ms + pl.col("total_ms")).alias("end_ms"),
        uncached.alias("uncached_tokens"),
        "rtt_ms",
        pl.when(whole).then("output_tokens").alias("output_tokens"),
    )
    return {
        address: [_Answer(*row) for row in group.tail(MOST_ANSWERS).select(columns).iter_rows()]
        for address, group in by_address.items()
    }


def _is_known(answer: _Answer) -> bool:
    return answer.output_tokens is not None and answer.output_tokens > LEAST_DECODE_TOKENS


def _engine(address: str, model: str, answers: Sequence[_Answer], usual: EngineParameters) -> SeenEngine:
    known = sum(map(_is_known, answers))
    parameters, error, own = usual, _error(usual, answers), False
    if known >= LEAST_ANSWERS:
        fitted = _fitted([answers])
        fitted_error = _error(fitted, answers)
        if fitted_error < _OWN_IS_BETTER * error:
            parameters, error, own = fitted, fitted_error, True
    return SeenEngine(address, model, fmean(each.rtt_ms for each in answers), parameters, known, error, own)


def _fitted(engines: Sequence[Sequence[_Answer]]) -> EngineParameters:
    """The parameters fitted to equal engines."""
    prefill_ms = _guessed_ms_per_token(engines)
    for _ in range(_ROUNDS):
        line = _line(engines, prefill_ms)
        prefill_ms = line.prefill_ms or prefill_ms
    sequence_ms = line.alone_ms * line.slowdown
    fixed_ms = _fixed_ms(engines, prefill_ms)
    return from_lines((fixed_ms, prefill_ms), (line.alone_ms - sequence_ms, sequence_ms))


def _line(engines: Sequence[Sequence[_Answer]], prefill_ms: float) -> DecodeLine:
    decode = DecodeTime(MOST_ANSWERS * len(engines))
    for answers in engines:
        for sample in _samples(answers, prefill_ms):
            decode.add(sample)
    return decode.line(prefill_ms)


def _samples(answers: Sequence[_Answer], prefill_ms: float) -> list[Sample]:
    """The time of each known answer's tokens, and what else the engine did meanwhile.

    A prompt is assumed to be computed just before its first token.
    """
    decoding = _Busy([(each.first_ms, each.end_ms) for each in answers])
    prefilling = _Busy([(each.first_ms - prefill_ms * each.uncached_tokens, each.first_ms) for each in answers])
    samples = []
    for each in answers:
        took_ms = each.end_ms - each.first_ms
        if each.output_tokens is None or not _is_known(each) or took_ms <= 0.0:
            continue
        steps = each.output_tokens - 1
        alongside = max(0.0, decoding.between(each.first_ms, each.end_ms) / took_ms - 1.0)
        prefilled = prefilling.between(each.first_ms, each.end_ms) / prefill_ms
        samples.append(Sample(alongside, prefilled / steps, took_ms / steps))
    return samples


def _error(parameters: EngineParameters, answers: Sequence[_Answer]) -> float:
    """The median relative error of a token's time; 0 if no answer is known."""
    alone_ms = parameters.decoding_step_ms(1)
    prefill_ms = parameters.prefill_ms_per_token
    line = DecodeLine(alone_ms, parameters.decode_ms_per_sequence / alone_ms, prefill_ms)
    errors = [abs(line.ms_per_token(each) / each.ms_per_token - 1.0) for each in _samples(answers, prefill_ms)]
    return median(errors) if errors else 0.0


def _guessed_ms_per_token(engines: Sequence[Sequence[_Answer]]) -> float:
    """Prefill time per token, from requests alone on an engine, or else from the first tokens that waited least."""
    alone = _alone(engines)
    if len(alone) >= LEAST_ALONE:
        _, slope_ms = line_of([(each.uncached_tokens, _engine_ms(each)) for each in alone])
        if slope_ms > 0.0:
            return slope_ms
    found = sorted(
        _engine_ms(each) / each.uncached_tokens
        for answers in engines
        for each in answers
        if each.output_tokens is not None and each.uncached_tokens >= LEAST_PREFILL_TOKENS
    )
    return found[int(_QUICK * len(found))] if found else EngineParameters().prefill_ms_per_token


def _fixed_ms(engines: Sequence[Sequence[_Answer]], prefill_ms: float) -> float:
    """The fixed time of a first token; 0 if too few requests were alone."""
    alone = _alone(engines)
    if len(alone) < LEAST_ALONE:
        return 0.0
    return max(0.0, median(_engine_ms(each) - prefill_ms * each.uncached_tokens for each in alone))


def _alone(engines: Sequence[Sequence[_Answer]]) -> list[_Answer]:
    """Answers that were alone on an engine until their first token, from the nearest engine with enough of them.

    Varying round trips hide the time of a first token, those to distant engines most.
    """
    found: list[_Answer] = []
    for answers in sorted(engines, key=lambda each: fmean(one.rtt_ms for one in each)):
        busy = _Busy([(each.sent_ms, each.end_ms) for each in answers])
        found = [
            each
            for each in answers
            if each.output_tokens is not None
            and busy.between(each.sent_ms, each.first_ms) <= (each.first_ms - each.sent_ms) * _ITSELF
        ]
        if len(found) >= LEAST_ALONE:
            break
    return found


def _engine_ms(answer: _Answer) -> float:
    """Time to the first token, without the round trip."""
    return max(answer.first_ms - answer.sent_ms - answer.rtt_ms, _LEAST_MS)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
