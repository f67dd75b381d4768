"""The first half of the questions: every model is asked all of them through Envoy, and `fairlead fit` fits.

What the sidecar saw of each prompt (language, tokens) comes from its decision log, joined by request id with whether
the answer was right, which only the client knows.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import httpx

from fairlead.client import Retry, ask_async
from fairlead.extproc.recorder import KEPT_DECISIONS
from fairlead.processes import Child, python_module
from fairlead.tools.demo.front import Front
from fairlead.tools.demo.learning import TASK, Learnt
from fairlead.tools.demo.traffic import client_of
from lab import words
from lab.engines import LabEngines
from lab.pool import body_of

FIRST_BUCKET_TOKENS: Final = 64
_COLUMNS: Final = ("model", "language", "tokens", "correct", "ms", "asked_language", "asked_tokens")


async def record(
    engines: LabEngines, front: Front, questions: Sequence[words.Question], path: Path, report: Callable[[], None]
) -> None:
    """Write a table of attempts to `path`, one question at a time: `ms` is measured on an idle pool."""
    rows: list[tuple[object, ...]] = []
    async with client_of(front.url) as client, client_of(front.admin_url) as admin:
        models = [engine.model for engine in engines.running]
        for start in range(0, len(questions), KEPT_DECISIONS // len(models)):
            asked: dict[str, tuple[words.Question, bool, float]] = {}
            for number, question in enumerate(questions[start : start + KEPT_DECISIONS // len(models)], start):
                for model in models:
                    right, ms = await _ask(client, question, model, f"{model}-{number}")
                    asked[f"{model}-{number}"] = (question, right, ms)
                    report()
            for seen in await _decisions(admin, len(asked)):
                question, right, ms = asked[seen["request_id"]]
                nominal = (question.language, question.length_tokens)
                rows.append((seen["model"], seen["language"], seen["tokens"], int(right), f"{ms:.3f}", *nominal))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([_COLUMNS, *sorted(rows, key=str)])


async def fit(table: Path, folder: Path) -> Learnt:
    """Run `fairlead fit` on `table` and read what it wrote to `folder`, and its suggested milliseconds per token."""
    arguments = ("fit", str(table), "--out", str(folder), f"--first-bucket={FIRST_BUCKET_TOKENS}")
    async with Child("fairlead fit", python_module("fairlead", *arguments), has_output=True) as fitting:
        said = await fitting.output()
    speeds = re.findall(r"^ +(\S+): \{prefill_ms_per_token: ([\d.e-]+)\}", said.decode(), re.MULTILINE)
    capability = folder / f"{TASK}.json"
    fits = json.loads(capability.read_bytes())["fit"]["models"]
    right = {model: fit["right"] / fit["attempts"] for model, fit in fits.items()}
    return Learnt(capability, {model: float(ms) for model, ms in speeds}, right)


def right_by_cell(table: Path, lengths_tokens: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Share of right answers in the table by model and asked language, one for each of `lengths_tokens`."""
    cells: dict[tuple[str, str, int], list[int]] = {}
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cell = (row["model"], row["asked_language"], int(row["asked_tokens"]))
            cells.setdefault(cell, []).append(int(row["correct"]))
    models = sorted({model for model, _, _ in cells})
    return {
        model: {
            language: [fmean(cells[model, language, length]) for length in lengths_tokens]
            for language in words.LANGUAGES
        }
        for model in models
    }


async def _ask(client: httpx.AsyncClient, question: words.Question, model: str, request_id: str) -> tuple[bool, float]:
    answer = await ask_async(
        client,
        body_of(question, model),
        question.is_right,
        retry=Retry(max_attempts=1),
        request_id=request_id,
    )
    return answer.correct, answer.time_to_correct_answer_ms


async def _decisions(admin: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    response = await admin.get("/debug/decisions", params={"limit": count})
    found: list[dict[str, Any]] = response.json()["decisions"]
    return found
