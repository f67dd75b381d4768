"""A server dies while it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from fairlead.client import Answer
from tests.waiting import Condition, until

ASKERS = 8
WITHIN_S = 120.0


async def answers_around_a_kill(
    ask: Callable[[Random], Awaitable[Answer]], holds_some: Condition, kill: Callable[[], None], is_ejected: Condition
) -> list[Answer]:
    """Those of askers that never pause, in the order in which they came, until each has asked twice without the dead
    server. It is killed while it has requests.
    """
    answers: list[Answer] = []
    enough = asyncio.Event()

    async def asker(number: int) -> None:
        rng = Random(600 + number)
        while not enough.is_set():
            answers.append(await ask(rng))

    async def killer() -> None:
        await until(holds_some, "the server has requests", WITHIN_S)
        kill()
        await until(is_ejected, "the server is ejected", WITHIN_S)
        ended = len(answers)

        def go_on() -> bool:  # of those that were under way each asker has had its own by then
            return len(answers) >= ended + 2 * ASKERS

        await until(go_on, "the askers go on", WITHIN_S)
        enough.set()

    await asyncio.gather(killer(), *[asker(number) for number in range(ASKERS)])
    return answers
