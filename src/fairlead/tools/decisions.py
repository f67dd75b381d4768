"""A decision log read back, piece by piece, and as a trace that can be replayed. `fit.judged` reads it as attempts.

A log may be larger than memory, and far away: columns and times that nobody asks for are not read, and of the rest each
reader says what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from fairlead.decision_log.files import PATTERN, SCHEMA
from fairlead.decision_log.location import in_bucket, why_not
from fairlead.errors import UserError

FOLLOWS_WITHIN_S: Final = 600.0  # after a longer pause, a request depends on its user and not on the last answer
_ROWS_AT_ONCE: Final = 16_384
_PENDING_ROWS: Final = 8 * _ROWS_AT_ONCE  # read before `keep` is asked again
_OK: Final = 200
_ADDED: Final = frozenset({"question", "last", "waited_ms", "evicted"})  # columns that older logs do not have
_IDENTITY: Final = ("at_s", "total_ms", "request", "session", "prompt", "model", "endpoint", "code")
_WHICH: Final = "__identity"
TRACE_COLUMNS: Final = (
    "at_s", "total_ms", "session", "attempted", "code", "prompt_tokens", "output_tokens", "asked", "model", "language",
    "blocks", "block_tokens",
)  # fmt: skip


def is_decision_log(source: Path | str) -> bool:
    """Whether `source` is in an object store, a folder, or one file of a log."""
    return in_bucket(source) or Path(source).is_dir() or Path(source).match(PATTERN)


def everything(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


def latest(most: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Keeps the latest `most` rows."""
    return lambda rows: rows.sort("at_s").tail(most)


def latest_of_each(column: str, most: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Keeps the latest `most` rows with each value of `column`."""
    return lambda rows: rows.sort("at_s").group_by(column, maintain_order=True).tail(most)


def read_decisions(
    source: Path | str,
    columns: Sequence[str] = tuple(SCHEMA),
    *,
    of: pl.Expr | None = None,
    keep: Callable[[pl.DataFrame], pl.DataFrame] = everything,
    most: int | None = None,
) -> pl.DataFrame:
    """Rows without duplicates, in the order of their decisions.

    Only rows `of` a kind and some columns are read (`at_s` is always one); of those read so far, `keep` says which may
    still matter. With `most`, reading ends after about so many rows, the earliest files first. Raises UserError for a
    folder without files and for a damaged one.
    """
    kept: list[pl.DataFrame] = []
    pending = read = 0
    for batch in _batches(source, columns, of):
        kept.append(batch)
        pending += batch.height
        read += batch.height
        if pending >= _PENDING_ROWS:
            kept, pending = [keep(_once(kept))], 0
        if most is not None and read >= most:
            break
    rows = keep(_once(kept)) if kept else _nothing(columns)
    return rows.drop(_WHICH).sort("at_s", maintain_order=True)


def first_at_s(source: Path | str) -> float:
    """When the first decision of the log was made, in Unix time. Raises UserError as `read_decisions`."""
    with _reading(source):
        first = _scan(source).select(pl.col("at_s").min()).collect(engine="streaming").item()
    return 0.0 if first is None else float(first)


def _once(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """All rows; those that are there twice, because their file is, once."""
    return pl.concat(frames).unique(_WHICH, keep="first", maintain_order=True)


def _nothing(columns: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(schema={name: SCHEMA[name] for name in columns} | {_WHICH: pl.UInt64()})


def _batches(source: Path | str, columns: Sequence[str], of: pl.Expr | None) -> Iterator[pl.DataFrame]:
    """In the order of files, and so about that of time."""
    with _reading(source):
        rows = _scan(source)
        if of is not None:
            rows = rows.filter(of)
        identity = pl.struct(_IDENTITY).hash().alias(_WHICH)
        for batch in rows.select(*columns, identity).collect_batches(chunk_size=_ROWS_AT_ONCE):
            if batch["at_s"].has_nulls():
                raise UserError(f"{source}: has rows without a time; a file in it is not one of a decision log")
            yield batch


def _scan(source: Path | str) -> pl.LazyFrame:
    """All rows as a query. Raises UserError, and what polars raises of files."""
    sources = _sources(source)
    present = pl.scan_parquet(sources, credential_provider=None).collect_schema().names()  # of the first file
    missing = [name for name in SCHEMA if name not in present]
    if not _ADDED.issuperset(missing):
        named = sources if isinstance(sources, str) else sources[0]
        raise UserError(f"{named}: the columns {', '.join(missing)} are missing; it is not a file of a decision log")
    return pl.scan_parquet(
        sources, schema=SCHEMA, missing_columns="insert", extra_columns="ignore", credential_provider=None
    )


def _sources(source: Path | str) -> str | list[Path]:
    if in_bucket(source):
        text = str(source).rstrip("/")
        return text if text.endswith(".parquet") else f"{text}/{PATTERN}"
    path = Path(source)
    files = sorted(path.glob(PATTERN)) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: no {PATTERN} in it; give the folder that decisions.path names")
    return files


@contextmanager
def _reading(source: Path | str) -> Iterator[None]:
    """Raises UserError for what polars cannot read, without what a store says: that may hold the access key."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        if not in_bucket(source):
            raise UserError(f"{_damaged(Path(source))}: cannot be read ({str(error).splitlines()[0]})") from None
        if "expanded paths were empty" in str(error):
            raise UserError(f"{source}: no {PATTERN} in it; give the place that decisions.path names") from None
        raise UserError(
            f"{source}: cannot be read ({why_not(error)}); the endpoint and credentials come from the environment, "
            "see docs/decision-log.md"
        ) from None


def _damaged(path: Path) -> Path:
    """The first file of `path` that is not Parquet, or else `path`."""
    for file in sorted(path.glob(PATTERN)) if path.is_dir() else [path]:
        try:
            pl.read_parquet_schema(file)
        except (OSError, pl.exceptions.PolarsError):
            return file
    return path


def trace_rows(decisions: pl.DataFrame, source: Path | str) -> tuple[pl.DataFrame, tuple[str, ...]]:
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
