"""A decision log read back, and as a trace that can be replayed. `fit.judged` reads it as attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from fairlead.decision_log.files import PATTERN, SCHEMA
from fairlead.errors import UserError

FOLLOWS_WITHIN_S: Final = 600.0  # after a longer pause, a request depends on its user and not on the last answer
_OK: Final = 200
_ADDED: Final = frozenset({"question", "last", "waited_ms", "evicted"})  # columns that older logs do not have
_IDENTITY: Final = ("at_s", "total_ms", "request", "session", "prompt", "model", "endpoint", "code")


def is_decision_log(path: Path) -> bool:
    """Whether `path` is a folder with files of a log in it, or one such file."""
    return any(path.glob(PATTERN)) if path.is_dir() else path.match(PATTERN)


def read_decisions(path: Path) -> pl.DataFrame:
    """All rows, without duplicates, in the order of their decisions.

    Raises UserError for a folder without files and for a damaged one.
    """
    files = sorted(path.glob(PATTERN)) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: no {PATTERN} in it; give the folder that decisions.path names")
    frames = []
    for file in files:
        try:
            frame = pl.read_parquet(file)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UserError(f"{file}: cannot be read ({str(error).splitlines()[0]})") from None
        missing = [name for name in SCHEMA if name not in frame.columns]
        if not _ADDED.issuperset(missing):
            raise UserError(f"{file}: the columns {', '.join(missing)} are missing; it is not a file of a decision log")
        added = [pl.lit(None, SCHEMA[name]).alias(name) for name in missing]
        frames.append(frame.with_columns(added).select(*SCHEMA))
    # The same file may be present twice, under two names.
    return pl.concat(frames).unique(_IDENTITY, keep="first", maintain_order=True).sort("at_s")


def trace_rows(decisions: pl.DataFrame, source: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The requests as a trace (columns of `docs/replay.md`), and notes on what had to be assumed.

    First tries only: a replay makes its own retries. A request that came after its session's last answer had ended
    waits for that answer in a replay too. Lengths are known for answers observed in full; the others get those lengths
    in turn, of the same model. Raises UserError if none is known.
    """
    timed = decisions.with_columns(_pause_s().alias("pause_s"))
    first = timed.filter((pl.col("attempted").list.len() == 0) & (pl.col("code") == _OK))
    if first.is_empty():
        raise UserError(f"{source}: no first try with status 200 in it, so there is nothing to replay")
    known = first.filter(pl.col("output_tokens") > 0)
    if known.is_empty():
        raise UserError(
            f"{source}: the length of no answer is known; set observe.answers_per_second above 0, and clients of "
            "streams must ask for usage (stream_options.include_usage)"
        )
    median = first.filter(pl.col("blocks").list.len() > 0)["block_tokens"].median()
    block_tokens = max(1, round(median)) if isinstance(median, float) else 512
    follows = (
        pl.col("session").is_not_null()
        & (pl.int_range(pl.len()).over("session") > 0)
        & pl.col("pause_s").is_between(0.0, FOLLOWS_WITHIN_S)
    )
    trace = first.select(
        pl.when(~follows).then("at_s").alias("at_s"),
        pl.when(follows).then("pause_s").alias("think_s"),
        "session",
        "prompt_tokens",
        pl.Series("output_tokens", _answer_lengths(first, known)),
        pl.col("asked").alias("model"),
        "language",
        pl.struct("blocks", "prompt_tokens")
        .map_elements(
            lambda row: _enough(row["blocks"], row["prompt_tokens"] // block_tokens),
            return_dtype=SCHEMA["blocks"],
        )
        .alias("blocks"),
        pl.lit(block_tokens).alias("block_tokens"),
    )
    notes = (
        f"from a decision log: first tries with status 200, {first.height} of {decisions.height} requests",
        f"{known.height} answers have a known length; the others get these lengths in turn",
        f"{trace['think_s'].count()} requests wait for their session's last answer, as they did in the log",
    )
    return trace, notes


def _pause_s() -> pl.Expr:
    """Seconds since the end of the session's last request; below 0 if that had not ended."""
    ended_s = pl.col("at_s") + pl.col("total_ms") / 1e3
    return pl.col("at_s") - ended_s.shift(1).over("session")


def _answer_lengths(requests: pl.DataFrame, known: pl.DataFrame) -> list[int]:
    """Tokens of each answer: its own, or else those of one of `known`, of the same model if possible."""
    lengths = {str(model): group["output_tokens"].to_list() for (model,), group in known.group_by("model")}
    everyone = known["output_tokens"].to_list()
    answers = []
    for number, (model, tokens) in enumerate(requests.select("model", "output_tokens").iter_rows()):
        drawn = lengths.get(model, everyone)
        answers.append(tokens or drawn[number % len(drawn)])
    return answers


def _enough(blocks: list[list[int]], whole: int) -> list[list[int]] | None:
    """Runs of the prompt's whole blocks, or None if estimate and count differ too much to say which."""
    return blocks if 2 * sum(count for _, count in blocks) >= whole else None
