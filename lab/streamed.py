"""One streamed answer, as its client saw it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx


class Took(NamedTuple):
    """A streamed answer's times and counts; `cached_tokens` is what the engine reports of the prompt."""

    first_token_ms: float
    total_ms: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


async def streamed(
    client: httpx.AsyncClient, path: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None
) -> Took:
    """Ask for a stream with its usage. Raises httpx.HTTPError if the engine refuses or breaks off."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    first_token_ms: float | None = None
    usage: dict[str, Any] = {}
    started_s = time.perf_counter()
    async with client.stream("POST", path, json=asked, headers=headers) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["choices"] and first_token_ms is None:
                first_token_ms = _ms_since(started_s)
            usage = event.get("usage") or usage
    assert first_token_ms is not None
    details = usage.get("prompt_tokens_details") or {}
    return Took(
        first_token_ms,
        _ms_since(started_s),
        usage["prompt_tokens"],
        details.get("cached_tokens") or 0,
        usage["completion_tokens"],
    )


def _ms_since(started_s: float) -> float:
    return (time.perf_counter() - started_s) * 1000
