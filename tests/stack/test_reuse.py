"""Context reuse through a real Envoy: what engines compute, and what clients and operators see."""

from __future__ import annotations

from typing import get_args

import pytest

from fairlead.gateway.parts import Mode
from tests.context.world import ANSWER, Message, ask
from tests.stack.conftest import Answer, Stack, Start, engine

DOCUMENTS = [f"d{number}" for number in range(12)]
ALWAYS = {"small": {"always": ["order", "dedup"]}}


async def send(pool: Stack, *messages: Message, headers: dict[str, str] | None = None) -> Answer:
    answer = await pool.chat(model="small", messages=list(messages), headers=headers)
    assert answer.status == 200
    return answer


@pytest.mark.parametrize("mode", get_args(Mode))
async def test_an_engine_finds_documents_cached_that_came_in_another_order(stack: Start, mode: Mode) -> None:
    equally_far = {"name": "fairlead", "rtt_weight": 0}  # measured round trips differ on a busy machine
    pool = await stack(engine(), engine(), mode=mode, reuse=ALWAYS, policy=equally_far)
    first = await send(pool, ask(DOCUMENTS))
    second = await send(pool, ask([*DOCUMENTS[6:], *DOCUMENTS[:6]]))
    assert first.cached_share == 0
    assert second.cached_share > 0.8
    assert second.headers["x-fairlead-endpoint"] == first.headers["x-fairlead-endpoint"]
    assert "x-fairlead-context-reuse" not in first.headers
    assert second.headers["x-fairlead-context-reuse"].endswith("order=7-8-9-10-11-12-1-2-3-4-5-6")
    assert await pool.metric("fairlead_context_reordered_tokens_total") > 1000
    assert await pool.metric("fairlead_context_requests_total", outcome="changed") == 1


async def test_without_it_the_same_documents_are_computed_again(stack: Start) -> None:
    pool = await stack(engine(), engine())
    await send(pool, ask(DOCUMENTS))
    assert (await send(pool, ask([*DOCUMENTS[6:], *DOCUMENTS[:6]]))).cached_share < 0.1


async def test_an_engine_is_sent_fewer_tokens_of_a_conversation_that_repeats_its_documents(stack: Start) -> None:
    pool = await stack(engine(), reuse={"small": {"on_request": ["dedup"]}})
    turns = ask(DOCUMENTS), ANSWER, ask(DOCUMENTS, "And?")
    plain = await send(pool, *turns)
    shorter = await send(pool, *turns, headers={"x-fairlead-context-reuse": "dedup"})
    tokens = [answer.json()["usage"]["prompt_tokens"] for answer in (plain, shorter)]
    assert tokens[1] < 0.65 * tokens[0]
