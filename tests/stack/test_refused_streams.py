"""An engine that refuses a stream in its first event, as a full SGLang does: another one answers instead."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead.core.streak import REQUEST_FAILURES_TO_EJECT
from fairlead.gateway import Mode
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions
from tests.stack.conftest import Answer, Stack, Start

ONE_AT_A_TIME = EngineParameters(decode_ms_per_step=20.0, max_num_seqs=1)
SGLANG = EngineOptions(model="m", kind="sglang", parameters=ONE_AT_A_TIME, info={"max_queued_requests": 1})
STICKY = {"name": "session_affinity"}
SESSION = {"x-session-id": "s"}
DOCUMENT = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, "stream": True}


@asynccontextmanager
async def full(pool: Stack, *engines: int) -> AsyncIterator[None]:
    """Their queues are full of requests that came past Fairlead, and it knows that they wait."""

    async def occupy(address: str) -> None:
        async with pool.client.post(f"http://{address}/v1/chat/completions", json=DOCUMENT) as answer:
            await answer.read()

    held = [asyncio.create_task(occupy(pool.engines[each].address)) for each in engines for _ in range(2)]

    async def are_known() -> bool:
        async with pool.client.get(f"{pool.admin_url}/debug/endpoints") as response:
            endpoints = {each["address"]: each for each in (await response.json())["endpoints"]}
        return all(endpoints[pool.engines[each].address]["reported"]["waiting_requests"] for each in engines)

    await pool.until(are_known, "the queues are known to be full")
    try:
        yield
    finally:
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_a_stream_that_is_refused_goes_to_the_next_engine(stack: Start, mode: Mode) -> None:
    pool = await stack(SGLANG, SGLANG, mode=mode, policy=STICKY)
    home = (await pool.chat(model="m", headers=SESSION)).headers["x-fairlead-endpoint"]
    place = [each.address for each in pool.engines].index(home)
    async with full(pool, place):
        answers = [
            await pool.chat(model="m", headers=SESSION, stream=True) for _ in range(REQUEST_FAILURES_TO_EJECT + 1)
        ]
    assert [answer.status for answer in answers] == [200] * len(answers)
    assert {answer.headers["x-fairlead-endpoint"] for answer in answers} == {pool.engines[1 - place].address}
    assert all(b'"error"' not in answer.body and answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
    assert await pool.metric("fairlead_held_streams_total", outcome="refused") == len(answers)
    assert await pool.metric("fairlead_endpoint_up", endpoint=home) == 1, "a full engine is no failing one"
    await pool.at_rest()


async def test_where_every_engine_refuses_the_client_gets_the_status_and_the_error_as_json(stack: Start) -> None:
    pool = await stack(SGLANG, SGLANG, policy=STICKY)
    async with full(pool, 0, 1):
        answer = await pool.chat(model="m", stream=True)
    assert answer.status == 503
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["message"] == "The request queue is full."
    await pool.at_rest()


SLOW = EngineOptions(
    model="m", kind="sglang", parameters=EngineParameters(prefill_ms_per_token=300.0), info={"max_queued_requests": 8}
)


async def test_a_first_token_that_is_late_is_waited_for(stack: Start) -> None:
    """Longer than Envoy waits for a sidecar that says nothing."""
    pool = await stack(SLOW, gateway={"processor_timeout_ms": 1000})
    answer = await pool.chat(model="m", stream=True)
    assert (answer.status, answer.body[-14:]) == (200, b"data: [DONE]\n\n")
    assert await pool.metric("fairlead_held_streams_total", outcome="passed") == 1
    await pool.at_rest()


async def test_a_sidecar_that_dies_lets_a_held_stream_pass(stack: Start) -> None:
    pool = await stack(SLOW)
    asked = asyncio.create_task(pool.chat(model="m", stream=True))

    async def is_held() -> bool:
        return await pool.metric("fairlead_held_streams_total") == 1

    await pool.until(is_held, "the stream is held")
    pool.stop_sidecar(signal.SIGKILL)
    answer = await asked
    assert (answer.status, answer.body[-14:]) == (200, b"data: [DONE]\n\n")


def text_of(streamed: Answer) -> str:
    """A busy engine sends several tokens in one event."""
    events = [line.removeprefix("data: ") for line in streamed.body.decode().splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)


async def test_a_stream_that_is_taken_has_all_of_its_events(stack: Start) -> None:
    pool = await stack(SGLANG, SGLANG, policy=STICKY)
    async with full(pool, 0):
        answer = await pool.chat(model="m", stream=True, max_tokens=40)
    assert answer.status == 200
    assert len(text_of(answer).split()) == 40
    await pool.at_rest()
