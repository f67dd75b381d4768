"""What a simulated SGLang does as the real one, and a vLLM does not."""

from __future__ import annotations

import asyncio
import json

from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions, running_engine
from tests.tools.simulate.conftest import FAST, client_of
from tests.waiting import until

ONE_AT_A_TIME = EngineParameters(max_num_seqs=1)
LONG = {"model": "m", "prompt": "go on", "max_tokens": 100_000}


async def test_it_has_the_pages_of_an_sglang() -> None:
    options = EngineOptions(model="m", kind="sglang", parameters=FAST, time_scale=100, info={"page_size": 1})
    async with running_engine(options) as engine, client_of(engine) as client:
        pages = {
            path: (await client.get(path)).status_code for path in ("/ready", "/health", "/server_info", "/version")
        }
        info = (await client.get("/server_info")).json()
    assert pages == {"/ready": 200, "/health": 200, "/server_info": 200, "/version": 404}
    assert (info["version"], info["page_size"], info["disaggregation_mode"]) == ("0.5.23", 1, "null")


async def test_its_health_waits_for_a_token_and_a_step_that_does_not_end_is_a_503() -> None:
    endless = EngineParameters(prefill_ms_per_token=1e9)
    options = EngineOptions(model="m", kind="sglang", parameters=endless, time_scale=1000)
    async with running_engine(options) as engine, client_of(engine) as client:
        idle = await client.get("/health")
        held = asyncio.create_task(client.post("/v1/completions", json=LONG))
        await until(lambda: engine.engine.running == 1)
        busy, ready = await client.get("/health"), await client.get("/ready")
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
    assert (idle.status_code, busy.status_code, ready.status_code) == (200, 503, 200)


async def test_a_model_that_it_does_not_have_is_answered_all_the_same() -> None:
    options = EngineOptions(model="m", kind="sglang", parameters=FAST)
    async with running_engine(options) as engine, client_of(engine) as client:
        answer = await client.post("/v1/completions", json={"model": "nobody", "prompt": "hello", "max_tokens": 2})
    assert answer.status_code == 200


async def test_a_full_queue_is_a_503_and_in_a_stream_an_error_after_a_200() -> None:
    options = EngineOptions(model="m", kind="sglang", parameters=ONE_AT_A_TIME, info={"max_queued_requests": 1})
    async with running_engine(options) as engine, client_of(engine) as client:
        held = [asyncio.create_task(client.post("/v1/completions", json=LONG))]
        await until(lambda: engine.engine.running == 1)
        held.append(asyncio.create_task(client.post("/v1/completions", json=LONG)))
        await until(lambda: engine.engine.waiting == 1)
        whole = await client.post("/v1/completions", json=LONG)
        streamed = await client.post("/v1/completions", json=LONG | {"stream": True})
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)
    assert (whole.status_code, streamed.status_code) == (503, 200)
    first, done, _ = streamed.text.split("\n\n")
    assert (json.loads(first.removeprefix("data: "))["error"]["code"], done) == (503, "data: [DONE]")
