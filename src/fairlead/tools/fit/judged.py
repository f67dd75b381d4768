"""A decision log read as attempts known to be right or wrong, to fit a capability on.

Fairlead cannot see whether an answer is right. A client that checks its answers and asks again shows it: a later
attempt at a question names the models that were wrong before, and an answer followed by no attempt was right. That
holds for clients that name their questions (`x-fairlead-question-id`, as `fairlead.client` does); others may not have
checked, so their silence says nothing. Three things are left out, so that silence means right:

- a model's further attempts at a question, because a capability is about the first;
- the last attempt that a client allows, after which it does not ask again whatever the answer;
- all attempts of clients that name no question, unless the operator says that all clients check.

A log may be incomplete: rows are lost in a crash, files rotate away, several sidecars share a client. Then a later
attempt names an answer whose row is missing, or an answer's later attempt is missing. Both happen equally often, so for
each name without a row, one answer of that model, language and length that seemed right is counted as wrong.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

MOST_ROWS: Final = 500_000  # the latest are used: a rate of so many is known to 0.1 %, and they take some 0.5 GB
COLUMNS: Final = (
    "at_s", "request", "question", "last", "attempted", "model", "language", "bucket", "prompt_tokens", "code",
)  # fmt: skip
_OK: Final = 200
_CELL: Final = ("model", "language", "bucket")


class Judged(NamedTuple):
    attempts: pl.DataFrame  # with the columns of `fit`
    unknown: int  # answers not known to be right or wrong
    inferred: int  # wrong answers known only by number: later attempts name them, but their rows are missing


def judged(decisions: pl.DataFrame, *, checked: bool) -> Judged:
    """`checked`: the operator says that all clients check their answers and ask again."""
    rows = decisions.with_columns(
        pl.col("attempted").list.len().cast(pl.Int64).alias("place"),
        pl.col("attempted").list.contains(pl.col("model")).alias("again"),
        pl.col("question").is_not_null().alias("named"),
    )
    answers = pl.concat([_answers(rows.filter("named")), *([_unnamed_answers(rows)] if checked else [])])
    wrong = pl.concat([_wrong(rows.filter("named")), *([_unnamed_wrong(rows)] if checked else [])])
    answers = answers.join(
        wrong.filter(pl.col("question").is_not_null()).select("question", "place", pl.lit(True).alias("wrong")),
        on=["question", "place"],
        how="left",
    )
    # Answered attempts only: a request that was sent again has several rows, so one of them is likelier to be present.
    without_row = wrong.filter(pl.col("code") == _OK).join(answers, on=["question", "place"], how="anti")
    lost = without_row.group_by(_CELL).len("lost")
    answers = (
        answers.join(lost, on=_CELL, how="left")
        .with_columns(
            # Among those that seem right, in an order unrelated to their content.
            pl.struct("request", "at_s").hash().rank("ordinal").over(*_CELL, pl.col("wrong").is_null()).alias("turn")
        )
        .with_columns((pl.col("wrong").is_null() & (pl.col("turn") <= pl.col("lost"))).fill_null(False).alias("taken"))
    )
    known = answers.select(
        "model",
        "language",
        "prompt_tokens",
        (pl.col("wrong").is_null() & ~pl.col("taken")).alias("correct"),
    )
    unknown = decisions.filter(pl.col("code") == _OK).height - known.height
    return Judged(known, unknown, without_row["question"].count())


_OF_ANSWERS: Final = ("question", "place", *_CELL, "prompt_tokens", "request", "at_s")
_OF_WRONG: Final = ("question", "place", *_CELL, "code")


def _answers(rows: pl.DataFrame) -> pl.DataFrame:
    """Answers of clients that name their questions. If an answer came twice, the first one was incomplete."""
    answered = rows.filter((pl.col("code") == _OK) & ~pl.col("again") & ~pl.col("last").fill_null(False))
    return answered.unique(["question", "place"], keep="last", maintain_order=True).select(_OF_ANSWERS)


def _unnamed_answers(rows: pl.DataFrame) -> pl.DataFrame:
    """Answers of other clients, except those at the attempt after which none asks again: they may have given up."""
    answered = rows.filter(~pl.col("named") & (pl.col("code") == _OK))
    deepest = max(1, int(answered["place"].max() or 0))  # type: ignore[arg-type]
    return answered.filter(~pl.col("again") & (pl.col("place") < deepest)).select(_OF_ANSWERS)


def _wrong(rows: pl.DataFrame) -> pl.DataFrame:
    """The answer before each attempt, which was wrong: also if the attempt itself failed and was sent again."""
    answered_first = rows.sort(pl.col("code") != _OK, maintain_order=True)
    return _before(answered_first).unique(["question", "place"], keep="first", maintain_order=True)


def _unnamed_wrong(rows: pl.DataFrame) -> pl.DataFrame:
    return _before(rows.filter(~pl.col("named") & (pl.col("code") == _OK)))


def _before(rows: pl.DataFrame) -> pl.DataFrame:
    models = pl.col("attempted").list
    of_first_tries = models.n_unique() > models.head(pl.col("place") - 1).list.n_unique()
    later = rows.filter(pl.col("place") > 0).filter(of_first_tries)
    return later.with_columns(models.last().alias("model"), pl.col("place") - 1).select(_OF_WRONG)
