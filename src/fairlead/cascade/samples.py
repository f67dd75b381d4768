"""A share of the traffic sent through every model of a cascade and judged, as the input for a new plan.

It runs after the client has its answer, so it costs the pool work and the client nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from fairlead.api.answers import Answer, part
from fairlead.cascade.counts import CascadeCounts, SampleOutcome
from fairlead.cascade.judge import JudgeError
from fairlead.cascade.route import Entry
from fairlead.cascade.rows import ProfileRow

_MOST_AT_ONCE = 8
_MOST_FILE_BYTES = 16 << 20  # then the file becomes `<name>.1` and a new one begins


class SampleFile(msgspec.Struct, frozen=True):
    """Rows are appended whole, a request's all at once."""

    path: Path

    def append(self, rows: Sequence[ProfileRow]) -> None:
        """Raises OSError."""
        if self.path.exists() and self.path.stat().st_size > _MOST_FILE_BYTES:
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        with self.path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


Ask = Callable[[str], Awaitable[Answer | None]]  # asks the model of this name
Score = Callable[[Answer], Awaitable[float]]  # raises JudgeError


class Samples:
    """Owns the tasks that ask the other models; `stop` ends them."""

    def __init__(self, counts: CascadeCounts) -> None:
        self._counts = counts
        self._tasks: set[asyncio.Task[None]] = set()

    def take(
        self, entry: Entry, file: SampleFile, known: Mapping[str, tuple[Answer, float | None]], ask: Ask, score: Score
    ) -> None:
        """Sample one request. `known` has the answers that it already got, by model, with their scores."""
        if len(self._tasks) >= _MOST_AT_ONCE:
            self._counts.sampled["dropped"] += 1
            return
        task = asyncio.create_task(self._within_the_deadline(entry, file, known, ask, score))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _within_the_deadline(
        self, entry: Entry, file: SampleFile, known: Mapping[str, tuple[Answer, float | None]], ask: Ask, score: Score
    ) -> None:
        outcome: SampleOutcome = "incomplete"
        try:
            async with asyncio.timeout(entry.route.deadline_s):
                outcome = await self._sample(entry, file, known, ask, score)
        except TimeoutError:
            pass
        finally:
            self._counts.sampled[outcome] += 1

    async def _sample(
        self, entry: Entry, file: SampleFile, known: Mapping[str, tuple[Answer, float | None]], ask: Ask, score: Score
    ) -> SampleOutcome:
        rows = []
        for model in entry.route.models:
            started_s = time.perf_counter()
            answer, scored = known.get(model, (None, None))
            if answer is None:
                answer = await ask(model)
            if answer is None:
                return "incomplete"  # a sample that lacks a model is no use for choosing thresholds
            took_ms = 0.0 if model in known else (time.perf_counter() - started_s) * 1000
            try:
                value = await score(answer) if scored is None else scored
            except JudgeError:
                return "incomplete"
            rows.append((model, answer, took_ms, value))
        # Named by when it is written: whoever reads the newest rows would miss those whose answers took long.
        request = f"{time.time():.6f}"
        try:
            await asyncio.to_thread(file.append, [_row(request, *row) for row in rows])
        except OSError:
            return "unwritten"
        return "written"


def _row(request: str, model: str, answer: Answer, took_ms: float, score: float) -> ProfileRow:
    usage = part(answer.document, "usage")
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return ProfileRow(
        request=request,
        model=model,
        prompt_tokens=max(1, prompt) if type(prompt) is int else 1,
        output_tokens=max(0, completion) if type(completion) is int else 0,
        latency_ms=round(took_ms, 2),
        score=score,
    )
