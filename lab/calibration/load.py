"""Requests in token ids, the same for any engine, and what each of them took."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final

import httpx

from lab import words
from lab.streamed import Took, streamed

OUTPUT_TOKENS: Final = 16
_FIRST_WORD: Final = 16  # below stand the special tokens and phrases


def random_prompt(rng: Random, tokens: int) -> list[int]:
    return rng.choices(range(_FIRST_WORD, len(words.vocabulary())), k=tokens)


async def ask(client: httpx.AsyncClient, model: str, prompt: Sequence[int]) -> Took:
    """Stream OUTPUT_TOKENS tokens. Raises httpx.HTTPError where the engine refuses or breaks off."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    return await streamed(client, "/v1/completions", body)


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
