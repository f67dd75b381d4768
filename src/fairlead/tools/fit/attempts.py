"""The table of attempts: read from CSV, JSON lines or Parquet, checked, and grouped by task family and model.

Each distinct text of a column is parsed once, so that a table of millions of rows is read in seconds. The first cell
that cannot be parsed ends the reading with its file, line and column.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fairlead.core.lengths import BUCKETS, FIRST_BUCKET_TOKENS, bounds_tokens, bucket_of
from fairlead.errors import UserError
from fairlead.tools.fit.names import bucket_index, is_right, language_index, model_name, task_name

DEFAULT_TASK = "kv-lookup"
_COLUMNS = ("model", "language", "bucket", "tokens", "prompt_tokens", "task", "correct", "ms")
_ROW = "__row"


@dataclass(frozen=True, slots=True)
class ModelAttempts:
    """Every attempt of one model at one task family. A cell is a language and a length bucket, as one number."""

    task: str
    model: str
    cell: NDArray[np.int64]  # index into LANGUAGES * len(BUCKETS) + index into BUCKETS
    right: NDArray[np.bool_]
    prefill_ms_per_token: float | None  # median over the attempts with time and tokens
    first_bucket_tokens: int = FIRST_BUCKET_TOKENS


def read_attempts(
    path: Path, first_bucket_tokens: int = FIRST_BUCKET_TOKENS, known: pl.DataFrame | None = None
) -> list[ModelAttempts]:
    """In the order of task and model names. Raises UserError that names the line and column to change.

    `known` is the table if it does not come from the file's own rows, as with a decision log.
    """
    table = _Table(path, *_load(path, known))
    language = table.parsed("language", language_index, "en, ja, zh or another language")
    if table.has("bucket"):
        bucket = table.parsed("bucket", partial(bucket_index, first_bucket_tokens=first_bucket_tokens), "4K, 8K, ...")
    else:
        bucket = table.buckets_of_tokens(first_bucket_tokens)
    columns = [
        table.parsed("model", model_name, "the model's name"),
        (language * len(BUCKETS) + bucket).alias("cell"),
        table.parsed("correct", is_right, "true or false"),
        table.ms_per_token().alias("ms_per_token"),
    ]
    task = table.parsed("task", task_name, "a name") if table.has("task") else pl.lit(DEFAULT_TASK).alias("task")
    understood = pl.DataFrame(columns).with_columns(task)
    found = []
    for (task_key, model_key), rows in understood.group_by("task", "model", maintain_order=True):
        median = rows["ms_per_token"].median()
        found.append(
            ModelAttempts(
                task=str(task_key),
                model=str(model_key),
                cell=rows["cell"].to_numpy(),
                right=rows["correct"].to_numpy(),
                prefill_ms_per_token=median if isinstance(median, float) else None,
                first_bucket_tokens=first_bucket_tokens,
            )
        )
    return sorted(found, key=lambda attempts: (attempts.task, attempts.model))


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns of text, and how to name a cell's location."""

    path: Path
    frame: pl.DataFrame
    row_word: str
    first_row: int

    def has(self, column: str) -> bool:
        return column in self.frame.columns and self.frame[column].null_count() < len(self.frame)

    def parsed(self, column: str, parse: Callable[[str], Any], example: str) -> pl.Series:
        """Each cell of `column`, parsed."""
        if not self.has(column):
            raise UserError(f'{self.path}: column "{column}" is missing or empty; add it, with {example} in each row')
        texts = self.frame[column].fill_null("")
        meaning = {}
        for text in texts.unique(maintain_order=True):
            try:
                meaning[text] = parse(text)
            except ValueError as error:
                raise self._wrong(column, texts.eq(text), str(error)) from None
        return texts.replace_strict(meaning)

    def buckets_of_tokens(self, first_bucket_tokens: int) -> pl.Series:
        """The length bucket of each row, if the table gives tokens instead of buckets."""
        column = self._tokens_column()
        if column is None:
            raise UserError(
                f'{self.path}: column "bucket" is missing or empty; add it, with 4K, 8K, ..., or add "tokens"'
            )
        tokens = self._positive_numbers(column)
        if tokens.has_nulls():
            raise self._wrong(column, tokens.is_null(), "is not a length; write the prompt's number of tokens")
        bounds = bounds_tokens(first_bucket_tokens)
        return tokens.map_elements(lambda count: bucket_of(int(count), bounds), return_dtype=pl.Int64)

    def ms_per_token(self) -> pl.Series:
        """Time over prompt tokens, null if a row lacks one of them: a failed request has no time."""
        column = self._tokens_column()
        if column is None or not self.has("ms"):
            return pl.Series(values=[None] * len(self.frame), dtype=pl.Float64)
        return self._positive_numbers("ms") / self._positive_numbers(column)

    def _tokens_column(self) -> str | None:
        return next((column for column in ("prompt_tokens", "tokens") if self.has(column)), None)

    def _positive_numbers(self, column: str) -> pl.Series:
        """The numbers of a column, null where a cell is anything else."""
        numbers = self.frame[column].str.strip_chars().cast(pl.Float64, strict=False)
        return numbers.set(~(numbers.is_finite() & (numbers > 0)), None)

    def _wrong(self, column: str, wrong: pl.Series, what: str) -> UserError:
        row = wrong.arg_true()[0]
        text = self.frame[column][row]
        shown = "an empty cell" if text is None or not text.strip() else f'"{text[:80]}"'
        place = f"{self.row_word} {self.frame[_ROW][row] + self.first_row}"
        return UserError(f'{self.path}: {place}, column "{column}": {shown} {what}')


def _load(path: Path, known_attempts: pl.DataFrame | None) -> tuple[pl.DataFrame, str, int]:
    """The known columns as text, the word for a row in this kind of file, and the number of its first row."""
    suffix = path.suffix.lower()
    try:
        if known_attempts is not None:
            frame, row_word, first_row = known_attempts, "row", 1
        elif suffix == ".csv":
            frame, row_word, first_row = pl.read_csv(path, infer_schema=False), "line", 2
        elif suffix in (".jsonl", ".ndjson"):
            # Everything as text: a number in one line and a string in the next are treated alike.
            frame, row_word, first_row = pl.read_ndjson(path, schema=dict.fromkeys(_COLUMNS, pl.String)), "row", 1
        elif suffix == ".parquet":
            frame, row_word, first_row = pl.read_parquet(path), "row", 1
        else:
            raise UserError(f"{path}: not a table that can be read; give a .csv, .jsonl or .parquet file")
        frame = frame.rename({column: column.strip().lower() for column in frame.columns})
        known = [column for column in _COLUMNS if column in frame.columns]
        frame = frame.with_row_index(_ROW).select(_ROW, *(pl.col(column).cast(pl.String) for column in known))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{path}: {_why_unreadable(path, suffix, error)}") from None
    if known:  # a blank line of a CSV file is read as a row of nothing
        frame = frame.filter(~pl.all_horizontal(pl.col(column).is_null() for column in known))
    if frame.is_empty():
        raise UserError(f"{path}: no attempts in it; write a row for each, with model, language, bucket and correct")
    return frame, row_word, first_row


def _why_unreadable(path: Path, suffix: str, error: Exception) -> str:
    first_sentence = str(error).splitlines()[0]
    if suffix in (".jsonl", ".ndjson"):
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                is_object = not line.strip() or isinstance(json.loads(line), dict)
            except (ValueError, RecursionError):
                is_object = False
            if not is_object:
                return f'line {number} is not a JSON object; write {{"model": ..., "language": ..., ...}} on each line'
    return f"not a well-formed {suffix[1:]} table: {first_sentence}"
