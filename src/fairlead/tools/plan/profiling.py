"""A sample of requests through every model of a cascade, judged: what `fairlead plan` plans from.

The table grows line by line, so answers survive an interruption; a second run asks only for what is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
import msgspec

from fairlead.api.paths import CHAT_COMPLETIONS, COMPLETIONS
from fairlead.cascade.judge import Judge, JudgeError, answer_text
from fairlead.cascade.rows import ProfileRow, read_rows
from fairlead.errors import UserError

_ATTEMPTS = 3


class SampleRequest(msgspec.Struct, frozen=True):
    """A request of the sample. `document` is what the judge gets, including keys for the judge only."""

    id: str
    body: dict[str, Any]
    document: dict[str, Any]

    @property
    def path(self) -> str:
        return CHAT_COMPLETIONS if "messages" in self.body else COMPLETIONS


_NOT_FOR_MODELS = ("id", "expected", "model", "stream", "stream_options")


def read_requests(path: Path) -> list[SampleRequest]:
    """JSON lines: an OpenAI request each, with an `id` and what a judge may need (`expected`). Raises UserError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    requests: dict[str, SampleRequest] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        except UnicodeDecodeError:
            raise UserError(f"{path}:{number}: is not UTF-8 text; save the file as UTF-8") from None
        if "messages" not in document and "prompt" not in document:
            raise UserError(f'{path}:{number}: neither "messages" nor "prompt"; write a request as the API takes it')
        name = str(document.get("id", number))
        if name in requests:
            raise UserError(f'{path}:{number}: the id "{name}" is there twice; ids identify the requests already done')
        body = {key: value for key, value in document.items() if key not in _NOT_FOR_MODELS}
        requests[name] = SampleRequest(name, body, document)
    if not requests:
        raise UserError(f"{path}: no request in it")
    return list(requests.values())


@dataclass(frozen=True, slots=True)
class Asking:
    """How the models are asked."""

    url: str
    models: Sequence[str]
    concurrency: int
    timeout_s: float


@dataclass(slots=True)
class ProfilingCounts:
    done: int = 0
    failed: int = 0
    unjudged: int = 0
    last_cause: str = ""


class _ModelIsMissingError(Exception):
    pass


def done_already(out: Path) -> set[tuple[str, str]]:
    """The rows in `out`; an incomplete last line is removed. Raises UserError for a file that is not such a table."""
    if not out.exists():
        return set()
    data = out.read_bytes()
    if data and not data.endswith(b"\n"):
        with out.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
    return {(row.request, row.model) for row in read_rows(out)}


async def profile(
    requests: Iterable[SampleRequest], asking: Asking, judge: Judge, out: Path, done: set[tuple[str, str]],
    session: aiohttp.ClientSession, progressed: Callable[[], None],
) -> ProfilingCounts:  # fmt: skip
    """Ask and judge what is missing, and append it to `out`. Raises UserError if a model is not served."""
    wanted = [(each, model) for each in requests for model in asking.models if (each.id, model) not in done]
    counts = ProfilingCounts()
    queue = iter(wanted)

    with out.open("ab") as file:

        async def work() -> None:
            for request, model in queue:
                await _one(request, model, asking, judge, session, counts, file)
                progressed()

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(asking.concurrency):
                    tasks.create_task(work())
        except* _ModelIsMissingError as missing:
            raise UserError(str(missing.exceptions[0])) from None
    return counts


async def _one(
    request: SampleRequest, model: str, asking: Asking, judge: Judge, session: aiohttp.ClientSession,
    counts: ProfilingCounts, file: BinaryIO,
) -> None:  # fmt: skip
    for _ in range(_ATTEMPTS):
        try:
            async with asyncio.timeout(asking.timeout_s):
                answer, latency_ms = await _answer(request, model, asking.url, session)
        except (aiohttp.ClientError, OSError, TimeoutError, _BadAnswerError) as error:
            cause, judged = f"{model}: {error or type(error).__name__}", False
            continue
        try:
            async with asyncio.timeout(asking.timeout_s):
                text = answer_text(answer)
                score = await judge.score(request.document, text)
        except (JudgeError, TimeoutError) as error:
            cause, judged = str(error) or "the judge took too long", True
            continue
        usage = msgspec.json.decode(answer).get("usage") or {}
        prompt_tokens = max(1, int(usage.get("prompt_tokens") or 0))
        output_tokens = int(usage.get("completion_tokens") or 0)
        row = ProfileRow(request.id, model, prompt_tokens, output_tokens, round(latency_ms, 2), score)
        file.write(msgspec.json.encode(row) + b"\n")
        file.flush()
        counts.done += 1
        return
    counts.last_cause = cause
    if judged:
        counts.unjudged += 1
    else:
        counts.failed += 1


class _BadAnswerError(Exception):
    pass


async def _answer(request: SampleRequest, model: str, url: str, session: aiohttp.ClientSession) -> tuple[bytes, float]:
    started_s = time.perf_counter()
    where = f"{url.rstrip('/').removesuffix('/v1')}{request.path}"
    async with session.post(where, json={**request.body, "model": model}) as response:
        answer = await response.read()
        if response.status == 404:
            raise _ModelIsMissingError(f"{url} does not serve {model}: {answer[:200].decode(errors='replace')}")
        if response.status != 200:
            raise _BadAnswerError(f"answered {response.status}: {answer[:200].decode(errors='replace')}")
    return answer, (time.perf_counter() - started_s) * 1000
