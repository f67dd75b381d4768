"""Requests as token ids, the same for any engine, and their measured times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final

import httpx

from lab import words
from lab.streamed import Took, streamed

OUTPUT_TOKENS: Final = 16
Session = Sequence[Sequence[int]]  # the prompts of its turns

_FIRST_WORD: Final = 16  # lower ids are special tokens and phrases


def sessions_of(rng: Random, sessions: int, turns: int) -> list[Session]:
    """Sessions whose every turn repeats the previous prompt and adds to it."""
    made: list[Session] = []
    for _ in range(sessions):
        prompt = random_prompt(rng, rng.randrange(64, 1024))
        session = [prompt]
        for _ in range(turns - 1):
            prompt = prompt + random_prompt(rng, rng.randrange(32, 256))
            session.append(prompt)
        made.append(session)
    return made


def random_prompt(rng: Random, tokens: int) -> list[int]:
    return rng.choices(range(_FIRST_WORD, len(words.vocabulary())), k=tokens)


async def ask(client: httpx.AsyncClient, model: str, prompt: Sequence[int]) -> Took:
    """Stream OUTPUT_TOKENS tokens. Raises httpx.HTTPError if the engine refuses or breaks off."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    return await streamed(client, "/v1/completions", body)


async def at_once(client: httpx.AsyncClient, model: str, prompts: Sequence[Sequence[int]]) -> list[Took]:
    return await asyncio.gather(*[ask(client, model, prompt) for prompt in prompts])


async def converse(client: httpx.AsyncClient, model: str, sessions: Sequence[Session], at_a_time: int) -> list[Took]:
    """All turns of the sessions, `at_a_time` sessions concurrently; answers in the order of the requests."""
    waiting = iter(enumerate(sessions))
    took: dict[tuple[int, int], Took] = {}

    async def client_loop() -> None:
        for number, session in waiting:  # one iterator for all
            for turn, prompt in enumerate(session):
                took[number, turn] = await ask(client, model, prompt)

    await asyncio.gather(*[client_loop() for _ in range(at_a_time)])
    return [took[place] for place in sorted(took)]
