"""A session moves between two real vLLM servers, with Fairlead and a real Envoy in front: its KV goes over TCP.

The servers are those of the lab, with vLLM's Mooncake connector. Prompts are longer than what the tiny models learned:
what they answer means nothing. That it is the same, with the same probabilities, is what counts.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import pytest_asyncio

from fairlead.engines.kv_transfer import Exported, Party, Prompt, TransferError, complete, taken
from fairlead.engines.mooncake import Mooncake
from fairlead.tools.demo.front import Front
from lab import words
from lab.engines import LabEngines
from lab.moving import ABORT_S, Moving
from lab.pool import known, running_front
from lab.servers import BLOCK_TOKENS

MODEL = "heron"
WITHIN_S = 120.0
ROUNDING = 0.25  # two steps of a bfloat16 logit between 16 and 32

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(840), pytest.mark.slow]


@dataclass(frozen=True)
class Lab:
    engines: LabEngines
    moving: Moving
    front: Front
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    def party(self, number: int) -> Party:
        return Party(self.engines.running[number].address, self.moving.bootstraps[number])

    async def turn(self, session: str, number: int) -> httpx.Response:
        response = await self.client.post(
            "/v1/chat/completions", json=conversation(session, number), headers={"x-session-id": session}
        )
        return response.raise_for_status()

    async def order(self, name: str, **order: Any) -> dict[str, Any]:
        response = await self.admin.post(f"/migrate/{name}", json=order)
        assert response.status_code == 200, response.text
        return dict(response.json())


def conversation(session: str, number: int) -> dict[str, Any]:
    """Some 5,000 tokens, and a question more with each turn."""
    rng = Random(session)
    prompts = [words.question(rng, "en", 1024).prompt for _ in range(5)]
    messages: list[dict[str, str]] = [{"role": "user", "content": "\n".join(prompts)}]
    for _ in range(number):
        asked = words.question(rng, "en", 128)
        messages += [{"role": "assistant", "content": asked.pairs[0][1]}, {"role": "user", "content": asked.prompt}]
    sampling = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "logprobs": True, "top_logprobs": 5}
    return {"model": MODEL, "messages": messages} | sampling


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lab() -> AsyncIterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:  # short: the path of a Unix socket is
        folder, moving = Path(name), await asyncio.to_thread(Moving, 2)
        async with LabEngines((MODEL, MODEL), folder, moving) as engines:
            endpoints = [
                {
                    "address": engine.address,
                    "model": MODEL,
                    "kv_transfer": {"connector": "mooncake", "bootstrap": bootstrap},
                }
                for engine, bootstrap in zip(engines.running, moving.bootstraps, strict=True)
            ]
            async with (
                running_front(engines, known(folder), "ear", folder, pool={"endpoints": endpoints}) as front,
                httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=WITHIN_S) as client,
                httpx.AsyncClient(base_url=front.admin_url, trust_env=False, timeout=WITHIN_S) as admin,
            ):
                yield Lab(engines, moving, front, client, admin)


async def test_a_moved_session_finds_its_context_on_the_target_and_gets_the_same_answer(lab: Lab) -> None:
    home = (await lab.turn("s", 0)).headers["x-fairlead-endpoint"]
    target = next(engine.address for engine in lab.engines.running if engine.address != home)
    await lab.order("move", session="s", to=target)
    during = await lab.turn("s", 1)
    assert during.headers["x-fairlead-endpoint"] == home
    async with asyncio.timeout(WITHIN_S):
        while (await lab.order("session", session="s"))["endpoint"] != target:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    after = await lab.turn("s", 2)
    assert after.headers["x-fairlead-endpoint"] == target
    usage = after.json()["usage"]
    assert usage["prompt_tokens"] > 4000
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
        unmoved = await client.post(f"http://{home}/v1/chat/completions", json=conversation("s", 2))
    assert_same(after.json()["choices"][0], unmoved.json()["choices"][0])
    page = (await lab.admin.get("/metrics")).text
    assert 'fairlead_session_migrations_total{outcome="done",way="copy"} 1.0' in page


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["message"]["content"] == other["message"]["content"]
    for these, those in zip(one["logprobs"]["content"], other["logprobs"]["content"], strict=True):
        assert these["token"] == those["token"]
        assert these["logprob"] == pytest.approx(those["logprob"], abs=ROUNDING)


async def test_an_import_that_finds_nothing_is_computed_and_its_counter_says_so(lab: Lab) -> None:
    source, target = lab.party(0), lab.party(1)
    engine_id = await Mooncake().discover(source)
    before = (await taken(target, WITHIN_S)).tokens
    ids = [10 + n % 900 for n in range(64 * BLOCK_TOKENS)]
    params = Mooncake().to_import("never exported", source, engine_id, Exported(None, None))
    with pytest.raises(TransferError, match="import: timeout"):
        await complete("import", target, Prompt(MODEL, ids, BLOCK_TOKENS), params, 1.0)
    imported = await complete("import", target, Prompt(MODEL, ids, BLOCK_TOKENS), params, ABORT_S + WITHIN_S)
    assert imported.cached_tokens == 0
    assert (await taken(target, WITHIN_S)).tokens == before


async def test_a_session_that_is_ordered_off_an_endpoint_that_dies_first_goes_on_elsewhere(lab: Lab) -> None:
    home = (await lab.turn("t", 0)).headers["x-fairlead-endpoint"]
    target = next(engine.address for engine in lab.engines.running if engine.address != home)
    await lab.order("move", session="t", to=target)
    next(engine for engine in lab.engines.running if engine.address == home).child.kill()
    after = await lab.turn("t", 1)
    assert after.headers["x-fairlead-endpoint"] == target
