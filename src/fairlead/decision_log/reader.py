"""A decision log read again: as a trace that can be replayed, and as attempts that a capability can be fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from fairlead.decision_log.files import PATTERN, SCHEMA
from fairlead.errors import UserError

FOLLOWS_WITHIN_S: Final = 600.0  # after a longer pause a request comes when its user does, however quick the answer was
_OK: Final = 200


def is_decision_log(path: Path) -> bool:
    """A folder that has files of a log in it, or one such file."""
    return any(path.glob(PATTERN)) if path.is_dir() else path.match(PATTERN)


def read_decisions(path: Path) -> pl.DataFrame:
    """All rows in the order of their decisions. Raises UserError for a folder without files and for a damaged one."""
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
        if missing:
            raise UserError(f"{file}: the columns {', '.join(missing)} are missing; it is no file of a decision log")
        frames.append(frame.select(*SCHEMA))
    return pl.concat(frames).sort("at_s")


def trace_rows(decisions: pl.DataFrame, source: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The requests as a trace (columns of `docs/replay.md`), and notes on what had to be assumed.

    First tries only: a replay makes its own retries. A request that came after its session's last answer had ended
    waits for that answer in a replay too. Lengths of answers are known of those that were observed in full; the others
    get, in turn, those of the same model. Raises UserError where none is known.
    """
    timed = decisions.with_columns(_pause_s().alias("pause_s"))
    first = timed.filter((pl.col("attempted").list.len() == 0) & (pl.col("code") == _OK))
    if first.is_empty():
        raise UserError(f"{source}: no first try with status 200 in it, so there is nothing to replay")
    known = first.filter(pl.col("output_tokens") > 0)
    if known.is_empty():
        raise UserError(
            f"{source}: it knows the length of no answer; set observe.messages_per_second above 0, and clients of "
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
        f"lengths of answers known of {known.height}, the others have theirs in turn",
        f"{trace['think_s'].count()} requests wait for their session's last answer, as they were seen to",
    )
    return trace, notes


def _pause_s() -> pl.Expr:
    """From the end of its session's last request; below 0 where that had not ended."""
    ended_s = pl.col("at_s") + pl.col("total_ms") / 1e3
    return pl.col("at_s") - ended_s.shift(1).over("session")


def _answer_lengths(requests: pl.DataFrame, known: pl.DataFrame) -> list[int]:
    """Tokens of each answer: its own, or where it has none those of one of `known`, of the same model if it can be."""
    lengths = {str(model): group["output_tokens"].to_list() for (model,), group in known.group_by("model")}
    everyone = known["output_tokens"].to_list()
    answers = []
    for number, (model, tokens) in enumerate(requests.select("model", "output_tokens").iter_rows()):
        drawn = lengths.get(model, everyone)
        answers.append(tokens or drawn[number % len(drawn)])
    return answers


def attempts(decisions: pl.DataFrame, *, checked: bool) -> tuple[pl.DataFrame, int]:
    """Attempts of which it is known whether they were right, with `fit`'s columns, and how many are not known.

    An answer was wrong when its question came again with its model among the attempted ones. The last answer of such a
    question is taken for right: who asks one model after the other stops when satisfied (or gives up, which cannot be
    told apart). Answers to questions that never came again are known only of sessions that did ask again at some time,
    or, with `checked`, of all: then they were right. Of a model's further tries at a question nothing is known.
    """
    rows = decisions.filter(pl.col("code") == _OK).with_columns(_question().alias("question"))
    named = rows.filter(pl.col("attempted").list.len() > 0)
    wrong = named.select("question", pl.col("attempted").alias("model")).explode("model").unique()
    repeated = named.select("question").unique()
    careful = named.select("session").drop_nulls().unique()
    rows = (
        rows.join(wrong.with_columns(pl.lit(True).alias("wrong")), on=["question", "model"], how="left")
        .join(repeated.with_columns(pl.lit(True).alias("repeated")), on="question", how="left")
        .join(careful.with_columns(pl.lit(True).alias("careful")), on="session", how="left")
    )
    right = (
        pl.when(pl.col("attempted").list.contains(pl.col("model")))
        .then(None)
        .when(pl.col("wrong").is_not_null())
        .then(False)
        .when(pl.col("repeated").is_not_null() | pl.col("careful").is_not_null() | pl.lit(checked))
        .then(True)
    )
    judged = rows.with_columns(right.alias("correct"))
    known = judged.filter(pl.col("correct").is_not_null())
    return known.select("model", "language", "prompt_tokens", "correct"), judged.height - known.height


def _question() -> pl.Expr:
    """What is asked, by whom: the same for a question's further tries. Short prompts need a session or a request id."""
    return (
        pl.when(pl.col("session").is_not_null())
        .then(pl.concat_str("session", pl.lit(" "), "prompt"))
        .when(pl.col("blocks").list.len() > 0)
        .then(pl.col("prompt"))
        .otherwise(pl.col("request"))
    )


def _enough(blocks: list[list[int]], whole: int) -> list[list[int]] | None:
    """Runs that name the prompt's whole blocks, or None where estimate and count are too far apart to say which."""
    return blocks if 2 * sum(count for _, count in blocks) >= whole else None
