"""The demo's clients: eight at a time ask the same questions in the same order, retrying until an answer is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import httpx

from fairlead.client import Answer, Retry, ask_async
from fairlead.tasks import all_of
from fairlead.tools.demo.questions import Question, is_correct
from fairlead.tools.demo.results import QuestionResult

ROUTE: Final = "auto"
ASKERS: Final = 8  # as in LAAR, section 6.1
MAX_ATTEMPTS: Final = 10
_MAX_OUTPUT_TOKENS: Final = 96  # room for a UUID and a few words around it


async def ask_all(
    url: str, questions: Sequence[Question], report: Callable[[QuestionResult], None]
) -> list[QuestionResult]:
    """Results in the order of `questions`; `report` is called for each as it arrives."""
    results: list[QuestionResult | None] = [None] * len(questions)
    waiting = iter(enumerate(questions))

    async def asker(client: httpx.AsyncClient) -> None:
        for index, question in waiting:  # one iterator for all askers
            answer = await ask_question(client, question, ROUTE, MAX_ATTEMPTS, session_id=f"question-{index}")
            results[index] = result = QuestionResult.of(question, answer)
            report(result)

    async with client_of(url) as client:
        await all_of(*[asker(client) for _ in range(ASKERS)])
    return [result for result in results if result is not None]


async def ask_question(
    client: httpx.AsyncClient, question: Question, model: str, max_attempts: int, session_id: str | None = None
) -> Answer:
    return await ask_async(
        client,
        body_of(question, model),
        partial(is_correct, question=question),
        retry=Retry(max_attempts=max_attempts, stop_when_alike=False),
        session_id=session_id,
    )


def body_of(question: Question, model: str) -> dict[str, Any]:
    return {"model": model, "messages": question.messages, "temperature": 0, "max_tokens": _MAX_OUTPUT_TOKENS}


def client_of(url: str) -> httpx.AsyncClient:
    """Ignores proxies of the environment: the demo talks only to this machine and to the named engines."""
    return httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(600.0, connect=10.0), trust_env=False)
