"""The clients: each takes a session, asks its turns one after the other through Envoy, and takes the next session.

A closed loop: a slow pool is asked less, as its clients wait. Times are the client's own, from the request's first byte
to the first event of the answer and to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from fairlead.api import headers as names
from fairlead.api.paths import CHAT_COMPLETIONS
from fairlead.tasks import all_of
from fairlead.tools.bench.routing.sessions import Session, Turn

_EVENT: Final = b"data: "
_DONE: Final = b"[DONE]"
_RAMP_S: Final = 1.5  # within which the clients begin, one after the other
_TIMEOUT: Final = aiohttp.ClientTimeout(total=120.0)


class Answered(msgspec.Struct, frozen=True):
    """One request, as its client saw it."""

    endpoint: str
    prompt_tokens: int
    cached_tokens: int
    ttft_ms: float
    e2e_ms: float


class NotMeasuredError(Exception):
    """A request failed, or passed without the sidecar: what was measured until then compares nothing."""


async def ask_all(url: str, model: str, sessions: Sequence[Session], clients: int) -> list[Answered]:
    """All requests of `sessions`, in the order of their answers, by `clients` at a time. Raises NotMeasuredError."""
    answers: list[Answered] = []
    waiting = iter(sessions)

    async def client(http: aiohttp.ClientSession, number: int) -> None:
        await asyncio.sleep(_RAMP_S * number / clients)
        for session in waiting:  # one iterator for all clients
            await _converse(http, model, session, answers.append)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=_TIMEOUT) as http:
        await all_of(*[client(http, number) for number in range(clients)])
    return answers


async def _converse(
    http: aiohttp.ClientSession, model: str, session: Session, report: Callable[[Answered], None]
) -> None:
    headers = {"content-type": "application/json"} | ({names.SESSION_ID.decode(): session.name} if session.name else {})
    messages = [{"role": "system", "content": session.system}]
    for turn in session.turns:
        await asyncio.sleep(turn.think_ms / 1e3)
        messages.append({"role": "user", "content": turn.text})
        answered, text = await _ask(http, _body(model, messages, turn), headers)
        report(answered)
        messages.append({"role": "assistant", "content": text})


def _body(model: str, messages: Sequence[Mapping[str, str]], turn: Turn) -> bytes:
    document = {
        "model": model,
        "messages": messages,
        "max_tokens": turn.answer_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return msgspec.json.encode(document)


async def _ask(http: aiohttp.ClientSession, body: bytes, headers: Mapping[str, str]) -> tuple[Answered, str]:
    started_s = time.perf_counter()
    first_s = 0.0
    parts: list[bytes] = []
    try:
        async with http.post(CHAT_COMPLETIONS, data=body, headers=headers) as response:
            async for part in response.content.iter_any():
                first_s = first_s or time.perf_counter()
                parts.append(part)
            ended_s = time.perf_counter()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise NotMeasuredError(f"a request failed ({type(error).__name__}: {error})") from None
    stream = b"".join(parts)
    endpoint = response.headers.get(names.ENDPOINT.decode())
    if response.status != HTTPStatus.OK or endpoint is None:
        advice = "with" if endpoint else "without"
        raise NotMeasuredError(f"status {response.status} {advice} the sidecar's advice: {stream[:200]!r}")
    text, usage = read_answer(stream)
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    times_ms = ((first_s - started_s) * 1e3, (ended_s - started_s) * 1e3)
    return Answered(endpoint, usage["prompt_tokens"], cached_tokens, *times_ms), text


def read_answer(stream: bytes) -> tuple[str, dict[str, Any]]:
    """Text and usage of a chat answer's events. Raises NotMeasuredError if it was cut before its usage."""
    text: list[str] = []
    usage: dict[str, Any] | None = None
    for line in stream.split(b"\n"):
        if not line.startswith(_EVENT) or line.endswith(_DONE):
            continue
        event = msgspec.json.decode(line.removeprefix(_EVENT))
        usage = event.get("usage") or usage
        text.extend(choice["delta"].get("content", "") for choice in event["choices"])
    if usage is None:
        raise NotMeasuredError("an answer ended without its usage")
    return "".join(text), usage
