"""Prompts computed at one engine and decoded at another through a real Envoy: engines fail, and clients go."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import pytest

from fairlead.extproc.reading import INLINE_BYTES
from fairlead.tools.simulate.kv_exchange import KvOptions
from fairlead.tools.simulate.server import EngineOptions
from tests.stack.conftest import Answer, Stack, Start

WORDS: Final = "The quick brown fox jumps over the lazy dog and runs into the woods. "
PREFILL, DECODE = 0, 1
CLIENTS, REQUESTS = 8, 6
BUSY: Final = 8  # requests in flight at the decode engine

pytestmark = pytest.mark.stack


async def started(stack: Start, connector: str = "nixl", **more: Any) -> Stack:
    """One engine that only computes prompts, and one that decodes. A token is believed to take 1 ms to compute."""
    kv = KvOptions("nixl", transfer_ms_per_token=0.001, abort_timeout_s=5.0)
    engine = EngineOptions(model="m", time_scale=20.0, kv=kv)
    halves = [{"role": role, "kv_transfer": {"connector": connector}} for role in ("prefill", "decode")]
    models = {"m": {"prefill_ms_per_token": 1.0, "kv_bytes_per_token": 1000}}
    observe = {"interval_ms": 100, "timeout_ms": 10_000, "answers_per_second": 0}
    pool = await stack(engine, engine, endpoints=halves, models=models, observe=observe, **more)

    async def identified() -> bool:
        async with pool.client.get(f"{pool.admin_url}/debug/endpoints") as response:
            return all(e["version"] for e in (await response.json())["endpoints"])

    await pool.until(identified, "the engines have told their version")
    return pool


@asynccontextmanager
async def decoding(pool: Stack) -> AsyncIterator[None]:
    """Requests are in flight at the decode engine, which a prefill there would stall."""
    await pool.fault(DECODE, kind="hang", count=BUSY)
    others = [asyncio.create_task(pool.chat("hello", model="m")) for _ in range(BUSY)]

    async def are_there() -> bool:
        return pool.engines[DECODE].faults.current is None

    await pool.until(are_there, "they are in flight")
    try:
        yield
    finally:
        for other in others:
            other.cancel()
        await asyncio.wait(others)


async def in_flight(pool: Stack, engine: int) -> float:
    return await pool.metric("fairlead_inflight_requests", endpoint=pool.engines[engine].address)


async def ask(pool: Stack, number: int = 0, repeats: int = 100, **more: Any) -> Answer:
    return await pool.chat(f"{number} " + WORDS * repeats, model="m", **more)


def computed(pool: Stack, engine: int) -> int:
    return pool.engines[engine].engine.counters.prompt_computed


def wrong_kv(pool: Stack) -> int:
    return sum(each.exchange.wrong_kv for each in pool.engines if each.exchange is not None)


async def sent_to(pool: Stack, engine: int) -> dict[str, str]:
    last = await pool.last_request(engine)
    return {name.lower(): value for name, value in last["headers"]}


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_the_prompt_is_computed_at_one_engine_and_the_answer_given_by_the_other(stack: Start, mode: str) -> None:
    pool = await started(stack, mode=mode)
    alone = await ask(pool)
    async with decoding(pool):
        answers = [await ask(pool, number, max_tokens=8) for number in range(1, 4)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert alone.cached_share == 0
    assert min(answer.cached_share for answer in answers) > 0.95
    assert computed(pool, PREFILL) > 3 * 0.95 * alone.json()["usage"]["prompt_tokens"]
    assert computed(pool, DECODE) < 1.2 * alone.json()["usage"]["prompt_tokens"]
    assert wrong_kv(pool) == 0
    ways = [decision["prefill"] for decision in await pool.decisions() if decision["prefill"]]
    assert [way["taken"] for way in ways[:3]] == ["split"] * 3
    assert ways[0]["split"]["total_ms"] < ways[0]["alone"]["total_ms"]
    assert ways[0]["split"]["prefiller"] == pool.engines[PREFILL].address
    await pool.at_rest()


async def test_a_body_that_is_read_in_another_process_is_split_too(stack: Start) -> None:
    pool = await started(stack)
    async with decoding(pool):
        answer = await ask(pool, repeats=4200)
    assert len(WORDS) * 4200 > INLINE_BYTES
    assert answer.status == 200
    assert answer.cached_share > 0.95
    await pool.at_rest()


async def test_the_answer_is_that_of_an_engine_alone(stack: Start) -> None:
    pool = await started(stack)
    async with decoding(pool):
        split = await ask(pool, max_tokens=16)
    async with pool.client.post(f"http://{pool.engines[DECODE].address}/reset_prefix_cache"):
        pass
    assert split.cached_share > 0.95
    await pool.at_rest()
    alone = await ask(pool, 0, max_tokens=16)
    assert alone.json()["choices"] == split.json()["choices"]


async def test_a_prefill_engine_killed_in_the_middle_costs_no_request(stack: Start) -> None:
    pool = await started(stack)
    async with decoding(pool):
        await pool.fault(PREFILL, kind="hang")
        held = [asyncio.create_task(ask(pool, number)) for number in range(3)]

        async def all_wait() -> bool:
            return await in_flight(pool, PREFILL) == len(held)

        await pool.until(all_wait, "all wait for their prefill")
        await pool.engines[PREFILL].stop()
        answers = await asyncio.gather(*held)
        after = await ask(pool, 9)
    assert [answer.status for answer in [*answers, after]] == [200] * 4
    assert max(answer.cached_share for answer in answers) == 0
    assert await pool.metric("fairlead_remote_prefills_total", outcome="failed") >= len(held)
    await pool.at_rest()


async def test_a_client_that_leaves_during_the_prefill_leaves_nothing_at_either_engine(stack: Start) -> None:
    pool = await started(stack)
    async with decoding(pool):
        await pool.fault(PREFILL, kind="hang")
        task = asyncio.create_task(ask(pool))

        async def waits() -> bool:
            return await in_flight(pool, PREFILL) == 1

        await pool.until(waits, "it waits for its prefill")
        task.cancel()
        await asyncio.wait([task])

        async def gone() -> bool:
            return await in_flight(pool, PREFILL) == 0 and await in_flight(pool, DECODE) == BUSY

        await pool.until(gone, "nothing of it is left")
    await pool.at_rest()


async def test_under_load_with_aborts_and_errors_every_other_request_is_answered_and_nothing_is_left(
    stack: Start,
) -> None:
    pool = await started(stack)
    statuses: list[int] = []

    async def client(name: int) -> None:
        for number in range(REQUESTS):
            if (name + number) % 4 == 0:  # it leaves, wherever its request is by then
                task = asyncio.create_task(ask(pool, 100 * name + number, 200))
                await asyncio.sleep(0.01 * name)
                task.cancel()
                await asyncio.wait([task])
                continue
            if number == 3:
                await pool.fault(PREFILL, kind=("error", "reset", "cut")[name % 3], count=1)
            statuses.append((await ask(pool, 100 * name + number, 200, stream=number % 2 == 0)).status)

    async with decoding(pool):
        await asyncio.gather(*(client(name) for name in range(CLIENTS)))
        assert set(statuses) == {200}
        assert await pool.metric("fairlead_remote_prefills_total", outcome="done") > 0
        assert await pool.metric("fairlead_remote_prefills_total", outcome="failed") > 0
    await pool.at_rest()
    assert await pool.metric("fairlead_inflight_prompt_tokens") == 0
    assert await pool.metric("fairlead_failures_total") == 0

    async def nothing_is_held() -> bool:
        return all(each.engine.kv_usage == 0 and each.engine.running == 0 for each in pool.engines)

    await pool.until(nothing_is_held, "the engines hold nothing")
    assert wrong_kv(pool) == 0


async def test_an_engines_proxy_is_told_who_computes_the_prompt_and_a_client_cannot_tell_it(stack: Start) -> None:
    pool = await started(stack, "proxy")
    mine = {"x-prefiller-host-port": "10.9.9.9:1", "x-fairlead-prefilled": "1"}
    assert (await ask(pool, headers=mine)).status == 200
    assert not {"x-prefiller-host-port", "x-fairlead-prefilled"} & (await sent_to(pool, DECODE)).keys()
    async with decoding(pool):
        assert (await ask(pool, 1, headers=mine)).status == 200
        headers = await sent_to(pool, DECODE)
    assert headers["x-prefiller-host-port"] == pool.engines[PREFILL].address
    await pool.at_rest()


async def test_what_a_client_says_of_moving_kv_reaches_neither_engine(stack: Start) -> None:
    pool = await started(stack)
    evil = {"do_remote_prefill": True, "remote_host": "10.9.9.9", "remote_port": 1}
    async with decoding(pool):
        answer = await ask(pool, kv_transfer_params=evil)
        bodies = [base64.b64decode((await pool.last_request(each))["body"]) for each in (PREFILL, DECODE)]
    assert answer.status == 200
    assert answer.cached_share > 0.95
    assert all(b"10.9.9.9" not in body for body in bodies)
    assert b"x-fairlead-prefilled" not in b"".join(bodies)


async def test_what_needs_its_prompt_computed_where_it_is_answered_is_answered_by_one_engine(stack: Start) -> None:
    pool = await started(stack)
    async with decoding(pool):
        before = computed(pool, PREFILL)
        answer = await ask(pool, prompt_logprobs=1)
    assert answer.status == 200
    assert computed(pool, PREFILL) == before
    assert await pool.metric("fairlead_remote_prefills_total", reason="one_engine") == 1


async def test_envoy_never_sends_a_request_to_an_engine_that_only_prefills(stack: Start) -> None:
    pool = await started(stack)
    pool.stop_sidecar()
    async with aiohttp.ClientSession() as client:
        for _ in range(10):
            async with client.post(f"{pool.url}/v1/chat/completions", json=_plain()) as response:
                assert response.status == 200
    assert computed(pool, PREFILL) == 0


def _plain() -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


async def test_where_a_pair_of_sglangs_halves_fails_a_server_that_does_both_answers(stack: Start) -> None:
    """The body names the meeting of the pair, of which an ordinary server takes no notice."""
    engine = EngineOptions(kind="sglang", model="m", time_scale=20.0)
    half = {"connector": "sglang"}
    prefill = {"role": "prefill", "kv_transfer": {**half, "bootstrap": "127.0.0.1:8998"}}
    pool = await stack(engine, engine, engine, endpoints=[prefill, {"role": "decode", "kv_transfer": half}, {}])
    await pool.fault(DECODE, kind="error", status=500)
    answers = [await ask(pool, number) for number in range(6)]
    assert {answer.status for answer in answers} == {200}
    assert b"bootstrap_room" in base64.b64decode((await pool.last_request(DECODE))["body"])
    await pool.at_rest()
