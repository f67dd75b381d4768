"""Requests wait in the sidecar while engines are full, through a real Envoy: their order and their end.

The engine answers nothing until it is released, and the sidecar is told that it is slow: one request or a few are on
it, and all others wait, however quick or busy the machine is.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.gateway import Mode
from fairlead.tools.decisions import read_decisions
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions
from tests.stack.conftest import Answer, Stack, Start

ADMISSION = {
    "begin_within_ms": 50,
    "max_wait_s": 240,
    "header": "x-priority",
    "vouched_by": "the test",
    "priorities": {"chat": {"level": 1}, "batch": {"level": -1, "share": 0.5}},
}
TENANTS = {"header": "x-tenant", "vouched_by": "the test"}
LONG = "word " * 1000  # some 1,000 tokens: 5 s of prefill by what the sidecar is told, in truth far less
MANY = 24
FEW = 8  # that the engine may have been given while the others came


async def held(stack: Start, mode: Mode = "buffered", **sections: Any) -> Stack:
    """A pool of one engine that holds what it is sent until it is released."""
    parameters = EngineParameters(prefill_ms_per_token=0.01, max_num_seqs=8, decode_ms_per_step=1.0)
    slow = {"small": {"prefill_ms_per_token": 5.0}}
    unlearned = {"interval_ms": 100, "timeout_ms": 10_000, "answers_per_second": 0}
    pool = await stack(
        EngineOptions(model="small", parameters=parameters), mode=mode, models=slow, observe=unlearned, **sections
    )
    await pool.fault(0, kind="slow", delay_ms=1e9)
    return pool


def release(pool: Stack) -> None:
    pool.engines[0].faults.set(None)


class Asking:
    """Requests that are under way at the same time; `ended` holds who was answered, in that order."""

    def __init__(self, pool: Stack) -> None:
        self.ended: list[str] = []
        self._pool = pool
        self._numbers = count()

    def start(self, who: str, **headers: str) -> asyncio.Task[Answer]:
        return asyncio.create_task(self._ask(who, {name.replace("_", "-"): value for name, value in headers.items()}))

    async def flood(self, who: str, **headers: str) -> list[asyncio.Task[Answer]]:
        """Many requests at once, of which most wait when this returns."""
        tasks = [self.start(who, **headers) for _ in range(MANY)]

        async def waits() -> bool:
            return await self._pool.metric("fairlead_waiting_requests") >= MANY - FEW

        await self._pool.until(waits, "most of the flood waits")
        return tasks

    async def _ask(self, who: str, headers: dict[str, str]) -> Answer:
        answer = await self._pool.chat(f"{next(self._numbers)} {LONG}", model="small", headers=headers)
        self.ended.append(who)
        return answer


async def is_clean(pool: Stack) -> bool:
    waiting = await pool.metric("fairlead_waiting_requests")
    return waiting == await pool.metric("fairlead_inflight_requests") == 0


async def until_one_more_waits(pool: Stack, entered: int) -> None:
    async def one_more() -> bool:
        waiting = await pool.metric("fairlead_waiting_requests")
        return waiting + await pool.metric("fairlead_inflight_requests") > entered

    await pool.until(one_more, "the sidecar has one request more")


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_chat_goes_before_a_flood_of_batch_and_all_are_answered(stack: Start, mode: Mode) -> None:
    pool = await held(stack, mode, admission=ADMISSION, tenants=TENANTS)
    asking = Asking(pool)
    batch = await asking.flood("batch", x_priority="batch", x_tenant="b")
    chat = asking.start("chat", x_priority="chat", x_tenant="c")
    await until_one_more_waits(pool, MANY)
    release(pool)
    assert {answer.status for answer in await asyncio.gather(chat, *batch)} == {200}
    assert asking.ended.index("chat") <= FEW + 2, "only what was on the engine comes before it"
    await pool.until(lambda: is_clean(pool), "nothing waits and nothing is in flight")
    assert await pool.metric("fairlead_waited_requests_total", outcome="go", priority="batch") > 10
    assert await pool.metric("fairlead_failures_total") == 0


async def test_tenants_of_one_priority_share_the_engine(stack: Start) -> None:
    pool = await held(stack, admission=ADMISSION, tenants=TENANTS)
    asking = Asking(pool)
    flooding = await asking.flood("the greedy", x_tenant="b")
    modest = asking.start("the modest", x_tenant="c")
    await until_one_more_waits(pool, MANY)
    release(pool)
    assert {answer.status for answer in await asyncio.gather(modest, *flooding)} == {200}
    assert asking.ended.index("the modest") <= FEW + 2, "only what was on the engine comes before it"


async def test_clients_that_leave_while_they_wait_leave_nothing_behind(stack: Start) -> None:
    pool = await held(stack, admission=ADMISSION)
    tasks = await Asking(pool).flood("all")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await pool.until(lambda: is_clean(pool), "nothing waits and nothing is in flight")
    release(pool)
    assert (await pool.chat("hello", model="small")).status == 200


async def test_a_full_queue_and_a_wait_that_is_over_are_answered_by_429_with_retry_after(stack: Start) -> None:
    pool = await held(stack, admission=ADMISSION | {"max_requests": 10})
    waiting = [asyncio.create_task(pool.chat(f"{number} {LONG}", model="small")) for number in range(MANY)]

    async def are_refused() -> bool:
        return sum(task.done() for task in waiting) >= MANY - 10 - FEW

    await pool.until(are_refused, "those for whom the queue has no place are refused")
    pool.write(admission=ADMISSION | {"max_wait_s": 1})
    await pool.until(pool.has_reloaded, "nobody waits longer than a second any more")
    expired = await asyncio.gather(*(pool.chat(f"late {number} {LONG}", model="small") for number in range(3)))
    release(pool)
    refused = [answer for answer in await asyncio.gather(*waiting) if answer.status != 200]
    assert len(refused) >= MANY - 10 - FEW
    assert {answer.status for answer in (*refused, *expired)} == {429}
    for answer in (*refused, *expired):
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "overloaded"
    assert {answer.headers["x-llm-d-request-dropped-reason"] for answer in refused} == {"rejected-saturated"}
    assert {answer.headers["x-llm-d-request-dropped-reason"] for answer in expired} == {"rejected-ttl-expired"}
    await pool.until(lambda: is_clean(pool), "nothing waits and nothing is in flight")


async def test_a_sidecar_that_is_killed_lets_all_that_waits_go_to_the_engines(stack: Start) -> None:
    pool = await held(stack, admission=ADMISSION)
    tasks = await Asking(pool).flood("all")
    assert pool.sidecar is not None
    pool.sidecar.kill()
    release(pool)
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}


async def test_a_sidecar_that_drains_refuses_what_waits_and_answers_what_runs(stack: Start) -> None:
    pool = await held(stack, admission=ADMISSION)
    tasks = await Asking(pool).flood("all")
    draining = asyncio.create_task(asyncio.to_thread(pool.stop_sidecar))

    async def are_refused() -> bool:
        return sum(task.done() for task in tasks) >= MANY - FEW

    await pool.until(are_refused, "what waits is refused")
    release(pool)
    answers = await asyncio.gather(*tasks)
    assert await draining == 0
    refused = [answer for answer in answers if answer.status != 200]
    assert MANY - FEW <= len(refused) < MANY
    for answer in refused:
        assert answer.status == 503
        assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"


async def test_a_reload_keeps_what_waits(stack: Start) -> None:
    pool = await held(stack, admission=ADMISSION)
    tasks = await Asking(pool).flood("all")
    pool.write(admission=ADMISSION | {"aging_s": 7})
    await pool.until(pool.has_reloaded, "the new rule is in force")
    release(pool)
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
    assert await pool.metric("fairlead_waited_requests_total", outcome="go") > 10


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_with_evict_lower_a_batch_answer_is_cut_off_for_chat_and_the_engine_is_told(
    stack: Start, mode: Mode, tmp_path: Path
) -> None:
    """What Envoy does with it: the client has had status 200 and a part, and then the connection ends too early."""
    parameters = EngineParameters(prefill_ms_per_token=0.1, max_num_seqs=1, decode_ms_per_step=20.0)
    one_at_a_time = EngineOptions(model="small", parameters=parameters)
    log = {"path": str(tmp_path / "decisions"), "sample": 1.0}
    pool = await stack(one_at_a_time, mode=mode, admission=ADMISSION | {"evict": "lower"}, decisions=log)
    batch = [asyncio.create_task(streamed(pool, 1500, x_priority="batch")) for _ in range(8)]  # half a minute each

    async def knows_its_limit() -> bool:
        return await pool.metric("fairlead_endpoint_running_limit") > 0

    await pool.until(knows_its_limit, "the engine's limit is known")
    chat = await pool.chat("hello", model="small", headers={"x-priority": "chat"})
    assert chat.status == 200
    evicted = await pool.metric("fairlead_waited_requests_total", outcome="evicted", priority="batch")
    assert evicted >= 1
    cut = 0
    while cut < evicted:
        done, _ = await asyncio.wait(batch, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert done, "an answer that was cut off has ended"
        for task in done:
            batch.remove(task)
            status, body, is_whole = task.result()
            assert status == 200
            assert is_whole == (b"[DONE]" in body)
            cut += not is_whole
    for task in batch:
        task.cancel()
    await asyncio.gather(*batch, return_exceptions=True)
    await pool.until(lambda: is_clean(pool), "nothing waits and nothing is in flight")
    assert await pool.metric("fairlead_requests_total", code="429") == evicted
    assert await pool.metric("fairlead_failures_total") == 0
    assert await asyncio.to_thread(pool.stop_sidecar) == 0
    assert read_decisions(tmp_path / "decisions")["evicted"].sum() == evicted


async def streamed(pool: Stack, tokens: int, **headers: str) -> tuple[int, bytes, bool]:
    """Status, what came of the answer, and whether it came to its end."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    message = {"role": "user", "content": "hello"}
    body = {"model": "small", "stream": True, "messages": [message], "max_tokens": tokens, "ignore_eos": True}
    got = b""
    async with pool.client.post(f"{pool.url}/v1/chat/completions", json=body, headers=named) as response:
        try:
            async for part in response.content.iter_any():
                got += part
        except aiohttp.ClientPayloadError:
            return response.status, got, False
    return response.status, got, True
