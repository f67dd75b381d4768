"""The simulated engine over HTTP: what a client or a router of a real vLLM relies on."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine
from tests.tools.simulate.conftest import FAST, WITHIN_S, client_of
from tests.waiting import until

KEY, VALUE = "6ab6ea3e-f288-4f33-bad6-7f42bb75b03f", "c0ffee00-1111-4222-8333-444455556666"
QUESTION = f'JSON data: {{"{KEY}": "{VALUE}"}} Key: {KEY}. The value associated with the specified key is:'
MESSAGES = [{"role": "user", "content": QUESTION}]
CHAT = "/v1/chat/completions"
ENDLESS = {"model": "m", "prompt": "go on", "max_tokens": 100_000}

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": MESSAGES},
    "/v1/completions": {"model": "m", "prompt": QUESTION, "max_tokens": 99},
    "/v1/responses": {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]},
    "/v1/messages": {"model": "m", "max_tokens": 99, "messages": MESSAGES},
    "/generate": {"text": QUESTION},
}
WHOLE_TEXT: dict[str, Callable[[Any], Any]] = {
    CHAT: lambda answer: answer["choices"][0]["message"]["content"],
    "/v1/completions": lambda answer: answer["choices"][0]["text"],
    "/v1/responses": lambda answer: answer["output"][0]["content"][0]["text"],
    "/v1/messages": lambda answer: answer["content"][0]["text"],
    "/generate": lambda answer: answer["text"],
}


def events_of(stream: str) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def streamed_text(path: str, events: list[dict[str, Any]]) -> str:
    if path == "/generate":
        return str(events[-1]["text"])
    pieces = {
        CHAT: lambda event: event["choices"][0]["delta"].get("content", ""),
        "/v1/completions": lambda event: event["choices"][0]["text"],
        "/v1/responses": lambda event: event.get("delta", ""),
        "/v1/messages": lambda event: event.get("delta", {}).get("text", ""),
    }
    return "".join(pieces[path](event) for event in events)


@pytest.mark.parametrize("path", BODIES)
async def test_every_api_answers_the_question_whole_and_streamed(client: httpx.AsyncClient, path: str) -> None:
    whole = await client.post(path, json=BODIES[path])
    assert WHOLE_TEXT[path](whole.json()) == VALUE
    streamed = await client.post(path, json={**BODIES[path], "stream": True})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streamed_text(path, events_of(streamed.text)) == VALUE


async def test_usage_tells_cached_tokens_and_streams_tell_it_only_when_asked(client: httpx.AsyncClient) -> None:
    body = {**BODIES[CHAT], "messages": [{"role": "user", "content": "long " * 200 + QUESTION}]}
    cold = (await client.post(CHAT, json=body)).json()["usage"]
    warm = (await client.post(CHAT, json=body)).json()["usage"]
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0}
    assert warm["prompt_tokens"] - 16 <= warm["prompt_tokens_details"]["cached_tokens"] < warm["prompt_tokens"]
    assert warm["total_tokens"] == warm["prompt_tokens"] + warm["completion_tokens"]

    plain = await client.post(CHAT, json={**body, "stream": True})
    assert all("usage" not in event for event in events_of(plain.text))
    asked = await client.post(CHAT, json={**body, "stream": True, "stream_options": {"include_usage": True}})
    last = events_of(asked.text)[-1]
    assert last["choices"] == []
    assert last["usage"] == warm
    assert asked.text.endswith("data: [DONE]\n\n")


async def test_the_next_turn_of_a_conversation_hits_the_cache_on_the_answer_too(client: httpx.AsyncClient) -> None:
    first = (await client.post(CHAT, json={"messages": MESSAGES, "max_tokens": 400, "ignore_eos": True})).json()
    turns = [*MESSAGES, first["choices"][0]["message"], {"role": "user", "content": "And now?"}]
    second = (await client.post(CHAT, json={"messages": turns, "max_tokens": 1})).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 32


async def test_a_prompt_of_token_ids_hits_what_its_text_left(client: httpx.AsyncClient) -> None:
    tokens = (await client.post("/tokenize", json={"messages": MESSAGES})).json()
    assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), FAST.max_model_len)
    await client.post(CHAT, json={"messages": MESSAGES})
    blocks = tokens["tokens"][: tokens["count"] // 16 * 16]
    answer = (await client.post("/v1/completions", json={"prompt": blocks, "max_tokens": 1})).json()
    assert answer["usage"]["prompt_tokens"] == len(blocks)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(blocks) - 16
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_embeddings_of_a_list_come_in_order(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/embeddings", json={"input": ["a b c", [1, 2]]})).json()
    assert [row["index"] for row in answer["data"]] == [0, 1]
    assert answer["usage"]["prompt_tokens"] == 3 + 2
    assert answer["data"][0]["embedding"] != answer["data"][1]["embedding"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, b'{"model": "m", "messages"', 400, None),
        (CHAT, b"\xff\xfe\xfa", 400, None),
        (CHAT, b"[]", 400, None),
        (CHAT, b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400, None),
        (CHAT, b'{"messages": [{"role": "user", "content": ' + b"[" * 900 + b"]" * 900 + b"}]}", 200, None),
        (CHAT, b'{"messages": []}', 400, "messages"),
        (CHAT, b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}', 400, "max_tokens"),
        (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 200, None),
        (CHAT, b'{"model": "other", "messages": [{"role": "user", "content": "hi"}]}', 404, "model"),
        ("/v1/completions", b'{"prompt": [1, "a"]}', 400, "prompt"),
        ("/v1/completions", b'{"prompt": "hi", "max_tokens": 131072}', 400, "input_tokens"),
        ("/v1/completions", b'{"prompt": "' + b"a " * 140_000 + b'"}', 400, "input_tokens"),
        ("/v1/messages", b'{"messages": [{"role": "user", "content": "hi"}]}', 400, "max_tokens"),
        ("/v1/embeddings", b'{"input": []}', 400, "input"),
    ],
)
async def test_bad_requests_get_a_status_and_openais_envelope(
    client: httpx.AsyncClient, path: str, body: bytes, status: int, param: str | None
) -> None:
    response = await client.post(path, content=body)
    assert response.status_code == status, response.text
    if status != 200:
        error = response.json()["error"]
        assert error["message"]
        assert (error["code"], error["param"]) == (status, param)


async def test_a_prompt_beyond_the_kv_cache_is_refused_and_not_queued_forever() -> None:
    options = EngineOptions(model="m", parameters=replace(FAST, num_blocks=4))
    async with running_engine(options) as engine, client_of(engine) as client:
        response = await client.post("/v1/completions", json={"prompt": "a " * 100})
        assert (response.status_code, engine.engine.waiting) == (400, 0)


async def test_headers_of_a_stream_come_before_its_first_token() -> None:
    slow = replace(FAST, prefill_ms_per_token=10_000.0)
    options = EngineOptions(model="m", parameters=slow)
    async with running_engine(options) as engine, client_of(engine) as client:
        body = {"messages": MESSAGES, "stream": True}
        async with client.stream("POST", CHAT, json=body) as response:
            assert response.status_code == 200
            assert (engine.engine.running, engine.engine.counters.generated) == (1, 0)


async def test_a_response_is_said_to_be_created_before_its_first_token() -> None:
    slow = replace(FAST, prefill_ms_per_token=10_000.0)
    path = "/v1/responses"
    async with (
        running_engine(EngineOptions(model="m", parameters=slow)) as engine,
        client_of(engine) as client,
        client.stream("POST", path, json={**BODIES[path], "stream": True}) as response,
    ):
        first = await anext(response.aiter_lines())
        assert (first, engine.engine.counters.generated) == ("event: response.created", 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_its_request(
    engine: RunningEngine, client: httpx.AsyncClient, stream: bool
) -> None:
    asking = asyncio.create_task(client.post("/v1/completions", json={**ENDLESS, "stream": stream}))
    await until(lambda: engine.engine.counters.generated > 3)
    asking.cancel()
    await until(lambda: engine.engine.running == 0)
    assert engine.engine.kv_usage == 0
    assert engine.engine.counters.finished == 0


async def test_time_scale_shortens_the_wait_on_the_wall_clock() -> None:
    parameters = replace(FAST, decode_ms_per_step=1000.0)
    options = EngineOptions(model="m", parameters=parameters, time_scale=1000.0)
    async with running_engine(options) as engine, client_of(engine) as client:
        async with asyncio.timeout(WITHIN_S):  # 100 s of the engine's clock
            answer = await client.post("/v1/completions", json={"prompt": "go on", "max_tokens": 100})
        assert answer.json()["usage"]["completion_tokens"] == 100


async def test_many_streams_at_once_each_get_all_their_tokens(client: httpx.AsyncClient) -> None:
    bodies = [{"prompt": f"story {number}", "max_tokens": 50 + number, "stream": True} for number in range(40)]
    answers = await asyncio.gather(*[client.post("/v1/completions", json=body) for body in bodies])
    for body, answer in zip(bodies, answers, strict=True):
        text = streamed_text("/v1/completions", events_of(answer.text))
        assert len(text.split()) == body["max_tokens"]


async def test_a_large_body_is_read_whole_and_last_request_returns_it_byte_by_byte() -> None:
    options = EngineOptions(model="m", parameters=replace(FAST, max_model_len=10_000_000, num_blocks=1_000_000))
    body = b'{"metadata":{"big":12345678901234567890123}, "prompt": "' + b"a " * 600_000 + b'","max_tokens":1}'
    headers = [("X-Twice", "1"), ("x-twice", "2"), ("X-Odd", "caf\u00e9".encode("latin-1").decode("latin-1"))]
    async with (
        running_engine(options) as engine,
        client_of(engine) as client,
    ):
        assert (await client.get("/last-request")).status_code == 404
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        assert (await client.post("/v1/completions", content=body, headers=encoded)).status_code == 200
        last = (await client.get("/last-request")).json()
    assert base64.b64decode(last["body"]) == body
    assert [[name, value] for name, value in last["headers"] if name.lower() in ("x-twice", "x-odd")] == [
        list(pair) for pair in headers
    ]


async def test_a_body_beyond_64_mib_is_413(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, content=b" " * (64 * 1024 * 1024 + 1))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == 413


async def test_pages_that_a_router_probes(client: httpx.AsyncClient) -> None:
    models = (await client.get("/v1/models")).json()
    assert [(each["id"], each["max_model_len"]) for each in models["data"]] == [("m", FAST.max_model_len)]
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/version")).json() == {"version": "0.32.0"}


async def test_reset_prefix_cache_makes_the_engine_cold(engine: RunningEngine, client: httpx.AsyncClient) -> None:
    await client.post(CHAT, json={"messages": MESSAGES})
    assert engine.engine.pool.cached > 0
    assert (await client.post("/reset_prefix_cache")).status_code == 200
    assert engine.engine.pool.cached == 0


async def test_a_stopped_engine_frees_its_port_and_can_come_back_on_it() -> None:
    async with running_engine(EngineOptions(model="m", parameters=FAST)) as engine:
        async with client_of(engine) as client:
            asking = asyncio.create_task(client.post("/v1/completions", json=ENDLESS))
            await until(lambda: engine.engine.running == 1)
            await engine.stop()
            with pytest.raises(httpx.TransportError):
                await asking
        port = int(engine.address.rpartition(":")[2])
    async with running_engine(EngineOptions(model="m", parameters=FAST, port=port)) as again:
        assert again.address == engine.address
