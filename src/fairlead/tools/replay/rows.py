"""Attempts of a simulation as a table, and the summary of one run's table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import polars as pl

from fairlead.tools.replay.attempts import AttemptRecord, RunCounts

_CHUNK: Final = 50_000
NEAREST_RANK: Final = "equiprobable"  # in polars' words; as `fairlead.statistics.quantile`
_SCHEMA: Final = {
    "conversation": pl.Int32,
    "turn": pl.Int32,
    "attempt": pl.Int16,
    "session": pl.Int64,
    "endpoint": pl.Int16,
    "model": pl.String,
    "why": pl.String,
    "prompt_tokens": pl.Int32,
    "output_tokens": pl.Int32,
    "expected_tokens": pl.Int32,
    "cached_tokens": pl.Int32,
    "asked_ms": pl.Float64,
    "sent_ms": pl.Float64,
    "first_token_ms": pl.Float64,
    "total_ms": pl.Float64,
    "right": pl.Boolean,
}


class Rows:
    """A sink for `Simulation`: keeps rows packed, so that a million of them stay small."""

    def __init__(self) -> None:
        self._chunks: list[pl.DataFrame] = []
        self._rows: list[AttemptRecord] = []

    def add(self, answer: AttemptRecord) -> None:
        self._rows.append(answer)
        if len(self._rows) == _CHUNK:
            self._pack()

    def frame(self) -> pl.DataFrame:
        """In the order in which attempts ended."""
        self._pack()
        return pl.concat(self._chunks)

    def _pack(self) -> None:
        self._chunks.append(pl.DataFrame(self._rows, schema=_SCHEMA, orient="row"))
        self._rows = []


class LatencyTarget(msgspec.Struct, frozen=True):
    """When a right answer came soon enough to count as goodput."""

    first_token_ms: float = 5_000.0  # from the first attempt
    token_ms: float = 100.0  # mean time per further token


class RunSummary(msgspec.Struct, frozen=True):
    """One run in numbers. Quantiles of times are over attempts that were answered; times are ms unless they say s."""

    requests: int  # turns, whatever their attempts
    attempts: int
    refused: int
    dropped: int
    preemptions: int
    moves: int  # of sessions, off hot endpoints
    moves_back: int
    cached_share: float  # of all prompt tokens
    expected_share: float  # share of prompt tokens that the router expected to be cached
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p90_ms: float
    tpot_p95_ms: float
    e2e_mean_ms: float
    e2e_p50_ms: float
    e2e_p90_ms: float
    e2e_p95_ms: float
    e2e_p99_ms: float
    ttca_mean_ms: float  # time to correct answer, from the first attempt, of those that got one
    ttca_p95_ms: float
    success_by_attempt: tuple[float, ...]  # share of requests with a right answer by attempt 1, 2, ...
    hotspot: float  # prompt tokens that the busiest engine had to compute, over the mean
    concentration: float  # share of attempts that the most chosen engine got
    worst_worker_ttft_p90_ms: float
    median_worker_ttft_p90_ms: float
    busy_share: float  # share of time with a step under way, mean over engines
    amplification: float  # time from the first request to the last answer, over the span of the recording
    goodput_per_s: float
    good_share: float  # of requests, answered rightly within the target
    span_s: float


def summarise(
    frame: pl.DataFrame, counts: RunCounts, *, recorded_ms: float, engines: int, target: LatencyTarget
) -> RunSummary:
    """`recorded_ms` is the span of the recording, `engines` how many there are, used or not."""
    answered = frame.filter(pl.col("endpoint") >= 0)
    if answered.is_empty():
        raise ValueError("no request was answered")
    decoding = answered.filter(pl.col("output_tokens") > 1).select(
        ((pl.col("total_ms") - pl.col("first_token_ms")) / (pl.col("output_tokens") - 1)).alias("tpot")
    )["tpot"]
    ttft, e2e = answered["first_token_ms"], answered["total_ms"]
    # In order, so that sums of floats are the same in every run, to the last bit.
    turns = frame.group_by("conversation", "turn", maintain_order=True).agg(
        pl.col("right").any(), pl.col("attempt").max(), (pl.col("sent_ms") + pl.col("total_ms")).max().alias("end_ms"),
        pl.col("asked_ms").first(),
    )  # fmt: skip
    right = turns.filter(pl.col("right"))
    ttca = right["end_ms"] - right["asked_ms"]
    workers = answered.group_by("endpoint").agg(
        pl.len().alias("attempts"),
        (pl.col("prompt_tokens") - pl.col("cached_tokens")).sum().alias("computed"),
        pl.col("first_token_ms").quantile(0.9, NEAREST_RANK).alias("ttft_p90"),
    )
    computed = float(workers["computed"].sum())
    per_token = (pl.col("total_ms") - pl.col("first_token_ms")) / (pl.col("output_tokens") - 1).clip(1)
    good = answered.filter(
        (pl.col("sent_ms") - pl.col("asked_ms") + pl.col("first_token_ms") <= target.first_token_ms)
        & (per_token <= target.token_ms)
        & pl.col("right")
    ).height
    begin_ms = float(frame.select(pl.col("sent_ms").min()).item())
    span_ms = float(frame.select((pl.col("sent_ms") + pl.col("total_ms")).max()).item()) - begin_ms
    prompts = float(answered["prompt_tokens"].sum())
    return RunSummary(
        requests=turns.height,
        attempts=frame.height,
        refused=counts.refused,
        dropped=counts.dropped,
        preemptions=counts.preemptions,
        moves=counts.moves,
        moves_back=counts.moves_back,
        cached_share=float(answered["cached_tokens"].sum()) / prompts,
        expected_share=float(answered["expected_tokens"].sum()) / prompts,
        ttft_p50_ms=_quantile(ttft, 0.5),
        ttft_p90_ms=_quantile(ttft, 0.9),
        ttft_p95_ms=_quantile(ttft, 0.95),
        ttft_p99_ms=_quantile(ttft, 0.99),
        tpot_p50_ms=_quantile(decoding, 0.5),
        tpot_p90_ms=_quantile(decoding, 0.9),
        tpot_p95_ms=_quantile(decoding, 0.95),
        e2e_mean_ms=float(e2e.sum()) / len(e2e),
        e2e_p50_ms=_quantile(e2e, 0.5),
        e2e_p90_ms=_quantile(e2e, 0.9),
        e2e_p95_ms=_quantile(e2e, 0.95),
        e2e_p99_ms=_quantile(e2e, 0.99),
        ttca_mean_ms=float(ttca.sum()) / max(1, len(ttca)),
        ttca_p95_ms=_quantile(ttca, 0.95),
        success_by_attempt=_successes(right["attempt"].to_list(), turns.height),
        hotspot=max(workers["computed"].to_list()) * engines / computed if computed else 1.0,
        concentration=max(workers["attempts"].to_list()) / answered.height,
        worst_worker_ttft_p90_ms=_quantile(workers["ttft_p90"], 1.0),
        median_worker_ttft_p90_ms=_quantile(workers["ttft_p90"], 0.5),
        busy_share=sum(counts.busy_ms) / engines / span_ms,
        amplification=span_ms / recorded_ms if recorded_ms else 1.0,
        goodput_per_s=good / (span_ms / 1e3),
        good_share=good / turns.height,
        span_s=span_ms / 1e3,
    )


def _quantile(values: pl.Series, share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; 0 of none."""
    found = values.quantile(share, NEAREST_RANK)
    return 0.0 if found is None else float(found)


def _successes(attempts: Sequence[int], requests: int) -> tuple[float, ...]:
    most = max(attempts, default=1)
    return tuple(sum(1 for each in attempts if each <= number) / requests for number in range(1, most + 1))
