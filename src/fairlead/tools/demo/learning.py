"""Before any routing, learn how good and how fast each model is: ask the engines one by one, then fit.

Results go through the same table and fit as in `fairlead fit`; the engines' settings are never used.
"""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.core.lengths import BUCKETS, bucket_of
from fairlead.engines.introduction import FoundEngine
from fairlead.tasks import all_of
from fairlead.tools.demo.questions import Question
from fairlead.tools.demo.traffic import ask_question, client_of

TASK: Final = "kv-lookup"
_FOLDS: Final = 5
_COLUMNS: Final = ("model", "language", "bucket", "tokens", "correct", "ms")


@dataclass(frozen=True, slots=True)
class Learnt:
    """The capability file, and each model's time per prompt token on an idle engine and share of right answers.

    Without a file, all models count as always right.
    """

    capability: Path | None
    prefill_ms_per_token: dict[str, float]
    right: dict[str, float]


async def learn(
    served: Sequence[FoundEngine], questions: Sequence[Question], folder: Path, report: Callable[[], None]
) -> Learnt:
    """Ask each model every question once, and fit. `report` is called for each answer."""
    rows = await _attempts(served, questions, report)
    table = folder / "attempts.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([_COLUMNS, *rows])
    return await asyncio.to_thread(_fit, table, folder)


async def _attempts(
    served: Sequence[FoundEngine], questions: Sequence[Question], report: Callable[[], None]
) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []

    async def one_by_one(engine: FoundEngine, its_questions: Sequence[Question]) -> None:
        async with client_of(f"http://{engine.address}") as client:
            for question in its_questions:
                answer = await ask_question(client, question, engine.model, max_attempts=1)
                bucket = BUCKETS[bucket_of(question.length_tokens)]
                ms = answer.time_to_correct_answer_ms
                rows.append(
                    (engine.model, question.language, bucket, question.length_tokens, answer.correct, f"{ms:.3f}")
                )
                report()

    shares = []
    for model in {engine.model for engine in served}:
        engines = [engine for engine in served if engine.model == model]
        for index, engine in enumerate(engines):  # engines of one model share its questions
            shares.append(one_by_one(engine, questions[index :: len(engines)]))
    await all_of(*shares)
    return rows


def _fit(table: Path, folder: Path) -> Learnt:
    from fairlead.tools.fit import fit_model, read_attempts, write_family

    seed = 0  # only for the folds
    fitted = [fit_model(attempts, seed, _FOLDS) for attempts in read_attempts(table)]
    capability = folder / f"{TASK}.json"
    write_family(capability, fitted, seed, _FOLDS)
    speeds = {one.model: one.prefill_ms_per_token for one in fitted if one.prefill_ms_per_token is not None}
    right = {one.model: float(one.right.sum() / (one.right.sum() + one.wrong.sum())) for one in fitted}
    return Learnt(capability, speeds, right)
