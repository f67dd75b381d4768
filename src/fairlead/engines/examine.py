"""Examine a running server as a client and as a sidecar would: a few short requests, and every page that is read.

What is seen is a value, `Seen`; `engines.findings` says what it means for Fairlead. A server whose generation fails is
examined as far as it answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from fairlead.api.paths import CHAT_COMPLETIONS, MODELS
from fairlead.api.usage import UNKNOWN, Usage, UsageReader
from fairlead.core.reported import EngineReport
from fairlead.dialects import DEFAULT, DIALECTS, Dialect, ModelCard, ServerInfo, owner_is, read_models, titles
from fairlead.engines.metrics_text import read_metrics
from fairlead.errors import UserError

_ASK_S: Final = 60.0  # for each request: the first of a fresh engine may compile
_PAGE_S: Final = 10.0
_PROBES: Final = 3
PROMPT: Final = " ".join(f"word{n % 97}" for n in range(400))  # more than one block of any engine
_LEAST_PROMPT: Final = 200  # bytes
_ANSWER_TOKENS: Final = 8
_NOBODY: Final = "no-such-model-of-fairlead-doctor"


@dataclass(frozen=True, slots=True)
class Generated:
    """One answer. `status` is 0 if none came."""

    status: int
    usage: Usage = UNKNOWN
    took_ms: float = 0.0
    parts: int = 0  # in which it came
    content_type: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server at `url` showed. None is: no answer."""

    url: str
    dialect: Dialect
    is_known: bool  # False: it is of no dialect, and passes for the default one
    cards: tuple[ModelCard, ...]
    info: ServerInfo
    first: Generated
    again: Generated  # the same prompt, streamed
    unknown_model: int  # the status of a request for a model that nobody has
    metrics_status: int | None
    report: EngineReport | None
    metrics: frozenset[str] = frozenset()  # names of the dialect's metrics on the page
    health_ms: Mapping[str, float | None] = field(default_factory=dict)  # by path, the slowest of some


async def examine(url: str, headers: Mapping[str, str], prompt: str = PROMPT) -> Seen:
    """Some ten requests, one after another; a prompt that is refused is shortened.

    Raises UserError if no OpenAI-compatible server answers at `url`.
    """
    timeout = aiohttp.ClientTimeout(total=_ASK_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        server = _Server(session, url)
        page = await _models(server)
        owners = [card.owner for card in read_models(page, DIALECTS[DEFAULT])]
        dialect = owner_is(owners[0])
        cards = read_models(page, dialect)
        model = next((card.name for card in cards if card.parent is None), cards[0].name)
        _, info = await server.page(dialect.info_path)
        probes = {path: await _slowest_ms(server, path) for path in dict.fromkeys((dialect.health_path, "/health"))}
        first = await server.generate(model, prompt, stream=False)
        while first.status == 400 and len(prompt) > _LEAST_PROMPT:  # too long for a small context, as it seems
            prompt = prompt[: len(prompt) // 4]
            first = await server.generate(model, prompt, stream=False)
        again = await server.generate(model, prompt, stream=True)
        nobody = await server.generate(_NOBODY, prompt, stream=False)
        metrics_status, text = await server.text(dialect.metrics_path)
        lines = (b"\n" + text).replace(b"{", b" ")
        return Seen(
            url=url,
            dialect=dialect,
            is_known=owners[0] == dialect.owner,
            cards=cards,
            info=dialect.read_info(info if isinstance(info, dict) else {}),
            first=first,
            again=again,
            unknown_model=nobody.status,
            metrics_status=metrics_status,
            report=read_metrics(text, time.monotonic()) if metrics_status == 200 else None,
            metrics=frozenset(each for each in dialect.metrics if b"\n%b " % each.partition("{")[0].encode() in lines),
            health_ms=probes,
        )


async def _models(server: _Server) -> Any:
    status, page = await server.page(MODELS)
    if status is None:
        raise UserError(f"{server.url}{MODELS} does not answer; is the server up, and is this its address?")
    if status in (401, 403):
        raise UserError(f"{server.url}{MODELS} answers {status}; give the server's key with --api-key")
    if not read_models(page, DIALECTS[DEFAULT]):
        raise UserError(f"{server.url}{MODELS} lists no model; give the address of a {titles()} server, or one like it")
    return page


async def _slowest_ms(server: _Server, path: str) -> float | None:
    took = []
    for _ in range(_PROBES):
        started_s = time.perf_counter()
        status, _text = await server.text(path)
        if status is None or status >= 400:
            return None
        took.append((time.perf_counter() - started_s) * 1e3)
    return max(took)


class _Server:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.url = url
        self._session = session

    async def text(self, path: str) -> tuple[int | None, bytes]:
        try:
            async with asyncio.timeout(_PAGE_S), self._session.get(self.url + path, allow_redirects=False) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None, b""

    async def page(self, path: str) -> tuple[int | None, Any]:
        """A page of JSON; None for what is not."""
        status, text = await self.text(path)
        try:
            return status, msgspec.json.decode(text) if status == 200 else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return status, None

    async def generate(self, model: str, prompt: str, *, stream: bool) -> Generated:
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": _ANSWER_TOKENS,
            "temperature": 0,
        }
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        reader, parts, started_s = UsageReader(events=stream), 0, time.perf_counter()
        try:
            async with self._session.post(self.url + CHAT_COMPLETIONS, json=body) as response:
                last = b""
                async for part in response.content.iter_any():
                    parts, last = parts + 1, part
                    reader.feed(part)
                reader.end()
                took_ms = (time.perf_counter() - started_s) * 1e3
                error = last.decode(errors="replace")[:200] if response.status >= 400 else ""
                return Generated(response.status, reader.usage, took_ms, parts, response.content_type, error)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            return Generated(0, error=str(problem) or type(problem).__name__)
