"""The load on the pool: sessions, a cascade, documents, an adapter, batch, a greedy tenant, mistakes of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, Final

import aiohttp

from fairlead.tools.demo.questions import LANGUAGES, questions
from scripts.pictures.pool import ABLE, ADAPTER, FAST, GREEDY
from tests.context.world import ask as with_documents
from tests.stack.conftest import Answer, Stack
from tests.stack.test_cascade import numbered

SESSIONS: Final = 14
BATCH: Final = 60  # requests that come at once
_THINK_S: Final = (1.0, 4.0)
_MOST_TURNS: Final = 8
_DOCUMENTS: Final = 40
_TEXT: Final = (
    "the router sends each request where the answer is expected first and keeps what engines have cached in mind while "
    "queues of long prompts wait for room and sessions stay with the endpoint that holds their context"
)


class Load:
    """`run` until it is cancelled; `batch` at a moment of one's choice."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self._stack = stack
        self._random = Random(seed)
        self._numbers = count()
        self._questions = questions(seed, LANGUAGES, (1024, 4096), 60)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as asking:
            asking.create_task(self.sessions())
            asking.create_task(self._every(1.0, self._cascade))
            asking.create_task(self._every(0.8, self._documents))
            asking.create_task(self._every(0.9, self._adapter))
            asking.create_task(self._every(0.7, self._question))
            asking.create_task(self._every(0.5, self._greedy))
            asking.create_task(self._every(3.0, self._mistake))

    async def sessions(self) -> None:
        """Those alone, which any pool of these models can serve."""
        async with asyncio.TaskGroup() as asking:
            for number in range(SESSIONS):
                asking.create_task(self._session(number))

    async def batch(self) -> None:
        """Long prompts, all at once, that may wait behind the chat."""
        headers = {"x-priority": "batch", "x-tenant": "globex"}
        await asyncio.gather(
            *[self._chat(f"{next(self._numbers)} {self._text(6000)}", FAST, headers, tokens=60) for _ in range(BATCH)]
        )

    async def story(self, request_id: str) -> None:
        """A question that is asked again, as its first answer was wrong."""
        question = self._questions[0].prompt
        first = await self._chat(question, "auto", {"x-request-id": request_id})
        wrong = {} if first is None else {"x-fairlead-attempted-models": first.headers["x-fairlead-model"]}
        await self._chat(question, "auto", {"x-request-id": request_id, **wrong})

    async def _every(self, seconds: float, step: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.TaskGroup() as asking:
            while True:
                asking.create_task(_awaited(step))
                await asyncio.sleep(self._random.expovariate(1 / seconds))

    async def _session(self, number: int) -> None:
        for conversation in count():
            name = f"session-{number}-{conversation}"
            headers = {"x-session-id": name, "x-tenant": ("acme", "globex")[number % 2]}
            messages = [{"role": "system", "content": f"{name} {self._text(self._random.randrange(800, 4000))}"}]
            for _ in range(self._random.randrange(2, _MOST_TURNS)):
                messages.append({"role": "user", "content": self._text(40)})
                answer = await self._chat("", FAST if number % 2 else "auto", headers, messages=messages)
                messages.append({"role": "assistant", "content": _text_of(answer)})
                await asyncio.sleep(self._random.uniform(*_THINK_S))

    async def _cascade(self) -> None:
        await self._chat(numbered(next(self._numbers)), "checked", stream=False)

    async def _documents(self) -> None:
        chosen = self._random.sample(range(_DOCUMENTS), 8)
        turns = [with_documents(chosen), {"role": "assistant", "content": "Because."}, with_documents(chosen, "And?")]
        await self._chat("", FAST, messages=turns)

    async def _adapter(self) -> None:
        await self._chat(self._text(300), ADAPTER)

    async def _question(self) -> None:
        await self._chat(self._random.choice(self._questions).prompt, self._random.choice(("auto", ABLE)))

    async def _greedy(self) -> None:
        await self._chat(self._text(900), ABLE, {"x-tenant": GREEDY})

    async def _mistake(self) -> None:
        await self._chat("hello", "gpt-unknown")

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(_TEXT.split(), k=words))

    async def _chat(
        self, content: str, model: str, headers: dict[str, str] | None = None, *, tokens: int = 40,
        stream: bool = True, **body: Any,
    ) -> Answer | None:  # fmt: skip
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        tenant = {"x-tenant": "acme"} | (headers or {})
        with suppress(aiohttp.ClientError):  # of an engine that is down
            return await self._stack.chat(content, headers=tenant, model=model, max_tokens=tokens, **more, **body)
        return None


async def _awaited(step: Callable[[], Awaitable[object]]) -> None:
    await step()


def _text_of(answer: Answer | None) -> str:
    return "" if answer is None else f"An answer of {len(answer.body)} bytes."
