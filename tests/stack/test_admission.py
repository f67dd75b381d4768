"""Requests wait in the sidecar while engines are full, through a real Envoy: their order and their end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest

from fairlead.decision_log.reader import read_decisions
from fairlead.gateway import Mode
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions
from tests.stack.conftest import Answer, Stack, Start

ADMISSION = {
    "begin_within_ms": 50,
    "max_wait_s": 60,
    "header": "x-priority",
    "vouched_by": "the test",
    "priorities": {"chat": {"level": 1}, "batch": {"level": -1, "share": 0.5}},
}
TENANTS = {"header": "x-tenant", "vouched_by": "the test"}
LONG = "word " * 1000  # some 1,000 tokens: a tenth of a second of prefill


def slow_engine() -> EngineOptions:
    parameters = EngineParameters(prefill_ms_per_token=0.1, max_num_seqs=8, decode_ms_per_step=5.0)
    return EngineOptions(model="small", parameters=parameters)


async def asked(pool: Stack, content: str, **headers: str) -> tuple[Answer, float]:
    began_s = time.monotonic()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await pool.chat(f"{began_s} {content}", model="small", headers=named)
    return answer, time.monotonic() - began_s


async def flood(pool: Stack, number: int, **headers: str) -> list[asyncio.Task[tuple[Answer, float]]]:
    """So many long requests at once, most of which wait."""
    tasks = [asyncio.create_task(asked(pool, LONG, **headers)) for _ in range(number)]

    async def waits() -> bool:
        return await pool.metric("fairlead_waiting_requests") >= number - 8

    await pool.until(waits, f"{number} requests wait")
    return tasks


async def is_clean(pool: Stack) -> bool:
    waiting = await pool.metric("fairlead_waiting_requests")
    return waiting == await pool.metric("fairlead_inflight_requests") == 0


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_chat_goes_before_a_flood_of_batch_and_all_are_answered(stack: Start, mode: Mode) -> None:
    pool = await stack(slow_engine(), mode=mode, admission=ADMISSION, tenants=TENANTS)
    batch = await flood(pool, 24, x_priority="batch", x_tenant="b")
    chat, chat_s = await asked(pool, "hello", x_priority="chat", x_tenant="c")
    left = sum(not task.done() for task in batch)
    assert chat.status == 200
    assert left > 10, "most of the flood still waits"
    answers = await asyncio.gather(*batch)
    assert {answer.status for answer, _ in answers} == {200}
    assert chat_s < max(took_s for _, took_s in answers) / 2
    assert await is_clean(pool)
    assert await pool.metric("fairlead_waited_requests_total", outcome="go", priority="batch") > 10
    assert await pool.metric("fairlead_failures_total") == 0


async def test_tenants_of_one_priority_share_the_engine(stack: Start) -> None:
    pool = await stack(slow_engine(), admission=ADMISSION, tenants=TENANTS)
    flooding = await flood(pool, 24, x_tenant="b")
    modest, modest_s = await asked(pool, LONG, x_tenant="c")
    assert modest.status == 200
    answers = await asyncio.gather(*flooding)
    assert modest_s < max(took_s for _, took_s in answers) / 2


async def test_clients_that_leave_while_they_wait_leave_nothing_behind(stack: Start) -> None:
    pool = await stack(slow_engine(), admission=ADMISSION)
    tasks = await flood(pool, 24)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await pool.until(lambda: is_clean(pool), "nothing waits and nothing is in flight")
    answer, _ = await asked(pool, "hello")
    assert answer.status == 200


async def test_a_full_queue_and_a_wait_that_is_over_are_answered_by_429_with_retry_after(stack: Start) -> None:
    pool = await stack(slow_engine(), admission=ADMISSION | {"max_requests": 10, "max_wait_s": 1})
    answers = await asyncio.gather(*(asked(pool, LONG) for _ in range(30)))
    refused = [answer for answer, _ in answers if answer.status != 200]
    assert {answer.status for answer in refused} == {429}
    for answer in refused:
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-llm-d-request-dropped-reason"].startswith("rejected-")
        assert answer.json()["error"]["code"] == "overloaded"
    await pool.until(lambda: is_clean(pool), "nothing waits and nothing is in flight")


async def test_a_sidecar_that_is_killed_lets_all_that_waits_go_to_the_engines(stack: Start) -> None:
    pool = await stack(slow_engine(), admission=ADMISSION)
    tasks = await flood(pool, 24)
    assert pool.sidecar is not None
    pool.sidecar.kill()
    answers = await asyncio.gather(*tasks)
    assert {answer.status for answer, _ in answers} == {200}


async def test_a_sidecar_that_drains_refuses_what_waits_and_answers_what_runs(stack: Start) -> None:
    pool = await stack(slow_engine(), admission=ADMISSION)
    tasks = await flood(pool, 80)  # it serves on for 2.5 s, until Envoy has noticed
    assert await asyncio.to_thread(pool.stop_sidecar) == 0
    answers = [answer for answer, _ in await asyncio.gather(*tasks)]
    refused = [answer for answer in answers if answer.status != 200]
    assert len(refused) > 10
    for answer in refused:
        assert answer.status == 503
        assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"


async def test_a_reload_keeps_what_waits(stack: Start) -> None:
    pool = await stack(slow_engine(), admission=ADMISSION)
    tasks = await flood(pool, 24)
    pool.write(admission=ADMISSION | {"aging_s": 7})
    answers = await asyncio.gather(*tasks)
    assert {answer.status for answer, _ in answers} == {200}
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
    batch = [asyncio.create_task(streamed(pool, 300, x_priority="batch")) for _ in range(8)]  # six seconds each

    async def knows_its_limit() -> bool:
        return await pool.metric("fairlead_endpoint_running_limit") > 0

    await pool.until(knows_its_limit, "the engine's limit is known")
    chat, _ = await asked(pool, "hello", x_priority="chat")
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
