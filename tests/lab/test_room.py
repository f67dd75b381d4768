"""A real vLLM server without room for a prompt's KV leaves it at the server that computed it, and fetches it later.

Simulated engines and the rule for splitting prompts take this for granted (`tools.simulate.engine`): an engine that
computed the prompt anew instead would be lost as soon as it is full.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.engines import LabEngines
from lab.moving import OverNixl
from lab.servers import A_CONNECTION_EACH, BLOCK_TOKENS, Extra
from tests.waiting import until

MODEL = "heron"
WITHIN_S = 240.0
LONG = 2_048  # tokens of the prompt whose KV is fetched
ROOM = 3_072  # tokens that the second server has room for

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(840), pytest.mark.slow]


class _SecondIsSmall(OverNixl):
    def __call__(self, number: int) -> Extra:
        extra = super().__call__(number)
        few = ["--num-gpu-blocks-override", str(ROOM // BLOCK_TOKENS + 1), "--max-model-len", str(ROOM)]
        return Extra([*extra.arguments, *(few if number else [])], extra.environment)


def prompt(first: int, tokens: int) -> list[int]:
    return [10 + (first + n) % 900 for n in range(tokens)]


async def counts(client: httpx.AsyncClient, address: str) -> dict[str, float]:
    """Requests that wait, tokens of the cache in use, and prompt tokens by where the server had them from."""
    page = (await client.get(f"http://{address}/metrics")).text
    sources = r'prompt_tokens_by_source_total\{[^}]*source="(\w+)"[^}]*'
    names = rf"num_requests_(waiting)\{{[^}}]*|kv_cache_(usage)_perc\{{[^}}]*|{sources}"
    found = re.findall(rf"^vllm:(?:{names})\}} ([0-9.e+-]+)", page, re.MULTILINE)
    seen = {waiting or usage or source: float(count) for waiting, usage, source, count in found}
    return seen | {"usage": seen["usage"] * ROOM}


async def complete(client: httpx.AsyncClient, address: str, ids: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": ids, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more}
    response = await client.post(f"http://{address}/v1/completions", json=body)
    return dict(response.raise_for_status().json())


async def test_kv_is_fetched_once_there_is_room_and_none_of_it_is_computed_again() -> None:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        moving = await asyncio.to_thread(_SecondIsSmall, 2)
        async with (
            LabEngines((MODEL, MODEL), Path(name), moving) as engines,
            httpx.AsyncClient(trust_env=False, timeout=WITHIN_S, limits=A_CONNECTION_EACH) as client,
        ):
            source, target = (engine.address for engine in engines.running)
            number = 0
            while not await is_fetched_late(client, source, target, number):
                number += 1  # on a busy machine a server may show nothing for as long as the whole answer takes


async def is_fetched_late(client: httpx.AsyncClient, source: str, target: str, number: int) -> bool:
    """Fetch a prompt's KV while an answer takes the room. False if it was not seen to wait for that."""
    wanted = {"do_remote_decode": True, "do_remote_prefill": False}
    computed = await complete(client, source, prompt(number, LONG), 1, kv_transfer_params=wanted)
    before = await counts(client, target)
    fills = asyncio.create_task(complete(client, target, prompt(300 + number, 32), ROOM - 64))

    async def has_no_room() -> bool:
        return fills.done() or (await counts(client, target))["usage"] > ROOM - LONG

    await until(has_no_room, "an answer takes the room", WITHIN_S)
    asked = complete(client, target, prompt(number, LONG), 2, kv_transfer_params=computed["kv_transfer_params"])
    fetches = asyncio.create_task(asked)
    was_full = not fills.done()
    waited = False

    async def has_waited() -> bool:
        nonlocal waited
        waited = (await counts(client, target))["waiting"] == 1
        return waited or fetches.done()

    await until(has_waited, "the other request waits", WITHIN_S)
    await fills
    await fetches

    async def all_counted() -> bool:
        return (await counts(client, target))["external_kv_transfer"] > before["external_kv_transfer"]

    await until(all_counted, "the transfer is counted", WITHIN_S)
    after = await counts(client, target)
    assert after["external_kv_transfer"] - before["external_kv_transfer"] >= LONG - BLOCK_TOKENS
    assert after["local_compute"] - before["local_compute"] <= 32 + BLOCK_TOKENS
    return was_full and waited
