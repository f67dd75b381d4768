"""Two sidecars, each with its own Envoy, that share the engines and nothing else."""

from __future__ import annotations

from itertools import count

import pytest

from tests.stack.conftest import Stack, Start, engine

pytestmark = pytest.mark.slow

OBSERVED = {"interval_ms": 100, "timeout_ms": 10_000, "answers_per_second": 1000, "messages_per_second": 10_000}


async def test_they_send_prompts_that_begin_alike_to_one_engine(stack: Start) -> None:
    """Once their engines have told them of prompts that they did not send; the engines alone would be one in four."""
    first = await stack(engine(), engine(), engine(), engine(), observe=OBSERVED)
    second = await stack(beside=first, observe=OBSERVED)
    numbers, questions = count(), count()

    async def both(subject: int) -> set[str]:
        pools = (first, second) if subject % 2 else (second, first)
        return {await ask(pool, subject) for pool in pools}

    async def ask(pool: Stack, subject: int) -> str:
        document = "".join(f"Sentence {place} of document {subject}. " for place in range(400))
        answer = await pool.chat(f"{document}\nQuestion {next(questions)}?", model="small")
        await pool.at_rest()
        return answer.headers["x-fairlead-endpoint"]

    async def know_of_each_other() -> bool:
        await both(next(numbers))
        found = [await pool.metric("fairlead_learned_others_cached_ratio") for pool in (first, second)]
        return min(found) > 0

    await first.until(know_of_each_other, "both were told of the other's prompts")
    engines = [await both(next(numbers)) for _ in range(16)]
    assert sum(len(each) == 1 for each in engines) >= 13, engines
    assert len(set.union(*engines)) > 1, "not all prompts go to one"
    assert "rendezvous" in {decision["why"] for decision in await first.decisions()}
