"""Requests in token ids, the same for any engine, and what each of them took."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple

import httpx

from lab import words

OUTPUT_TOKENS: Final = 16
_PATH: Final = "/v1/completions"
_FIRST_WORD: Final = 16  # below stand the special tokens and phrases


class Took(NamedTuple):
    """One answer, as its client saw it."""

    first_token_ms: float
    total_ms: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def random_prompt(rng: Random, tokens: int) -> list[int]:
    return rng.choices(range(_FIRST_WORD, len(words.vocabulary())), k=tokens)


async def ask(client: httpx.AsyncClient, model: str, prompt: Sequence[int]) -> Took:
    """Stream OUTPUT_TOKENS tokens. Raises httpx.HTTPError where the engine refuses or breaks off."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s = time.perf_counter()
    first_token_ms: float | None = None
    usage: dict[str, Any] = {}
    async with client.stream("POST", _PATH, json=body) as response:
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


async def at_once(client: httpx.AsyncClient, model: str, prompts: Sequence[Sequence[int]]) -> list[Took]:
    return await asyncio.gather(*[ask(client, model, prompt) for prompt in prompts])


async def converse(
    client: httpx.AsyncClient, model: str, rng: Random, sessions: int, turns: int, at_a_time: int
) -> list[Took]:
    """Sessions whose every turn repeats the prompt before and adds to it, `at_a_time` of them side by side.

    Answers are in the order of sessions and turns, whenever they came.
    """
    waiting = iter(enumerate([Random(rng.random()) for _ in range(sessions)]))
    took: dict[tuple[int, int], Took] = {}

    async def client_loop() -> None:
        for session, its_rng in waiting:  # one iterator for all
            prompt = random_prompt(its_rng, its_rng.randrange(64, 1024))
            for turn in range(turns):
                took[session, turn] = await ask(client, model, prompt)
                prompt = prompt + random_prompt(its_rng, its_rng.randrange(32, 256))

    await asyncio.gather(*[client_loop() for _ in range(at_a_time)])
    return [took[place] for place in sorted(took)]


def _ms_since(started_s: float) -> float:
    return (time.perf_counter() - started_s) * 1000
