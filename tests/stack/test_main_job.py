"""A request through a real Envoy to the endpoint with the least expected time to a correct answer."""

from __future__ import annotations

import asyncio
import base64
import signal
import uuid

import msgspec
import pytest

from fairlead.client import ask_async
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.gateway import Mode
from tests.core.world import always
from tests.stack.conftest import WITHIN_S, Start, engine

MODES: list[Mode] = ["buffered", "full_duplex"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_reaches_an_engine_of_its_model_unaltered(stack: Start, mode: Mode) -> None:
    pool = await stack(engine("small"), engine("large"), mode=mode)
    body = (
        b'{ "z": 12345678901234567890.10,  "model":"large", "max_tokens":2,'
        b' "messages":[{"role":"user","content":"h\\u00e9 \xe3\x81\x82"}] }'
    )
    answer = await pool.ask("POST", "/v1/chat/completions?a=b%20c", body, {"x-request-id": "mine", "X-Custom": "Kept"})
    received = await pool.last_request(1)
    headers = {name.lower(): value for name, value in received["headers"]}
    assert answer.status == 200
    assert base64.b64decode(received["body"]) == body
    assert (headers["x-custom"], headers["x-request-id"], answer.headers["x-request-id"]) == ("Kept", "mine", "mine")
    assert answer.headers["x-fairlead-model"] == "large"
    assert answer.headers["x-fairlead-endpoint"] == pool.engines[1].address
    assert answer.headers["x-fairlead-decision"] == "cost"


@pytest.mark.parametrize("mode", MODES)
async def test_a_route_is_spliced_to_the_chosen_model(stack: Start, mode: Mode) -> None:
    pool = await stack(engine("granite-3.1-2b"), mode=mode)
    body = b'{"messages":[{"role":"user","content":"\xe3\x81\x82 \\"model\\": \\"auto\\""}],"model" : "auto","n":1.0}'
    answer = await pool.ask("POST", "/v1/chat/completions", body)
    assert answer.status == 200, answer.body
    received = base64.b64decode((await pool.last_request(0))["body"])
    assert received == body.replace(b': "auto","n"', b': "granite-3.1-2b","n"')


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [40_000, 2_000_000, 20_000_000])
async def test_a_large_body_passes_whole(stack: Start, mode: Mode, size: int) -> None:
    pool = await stack(engine(), mode=mode)
    body = msgspec.json.encode({"model": "small", "messages": [{"role": "user", "content": "hi"}], "user": "x" * size})
    answer = await pool.ask("POST", "/v1/chat/completions", body)
    assert answer.status == 200, answer.body[:200]
    assert base64.b64decode((await pool.last_request(0))["body"]) == body


@pytest.mark.parametrize("mode", MODES)
async def test_a_stream_arrives_whole_and_ends_the_load(stack: Start, mode: Mode) -> None:
    pool = await stack(engine(), mode=mode)
    answer = await pool.chat(model="small", stream=True, max_tokens=50, stream_options={"include_usage": True})
    *_, usage, done = [line for line in answer.body.splitlines() if line.startswith(b"data: ")]
    assert done == b"data: [DONE]"
    assert msgspec.json.decode(usage.removeprefix(b"data: "))["usage"]["completion_tokens"] == 50
    await pool.at_rest()


async def test_a_client_that_leaves_ends_the_work_on_the_engine_and_the_load(stack: Start) -> None:
    pool = await stack(engine())
    await pool.fault(0, kind="hang")
    asking = asyncio.create_task(pool.chat())

    async def in_flight() -> bool:
        return await pool.metric("fairlead_inflight_requests") == 1

    await pool.until(in_flight, "the request is in flight")
    asking.cancel()

    async def counted() -> bool:
        return await pool.metric("fairlead_requests_total", code="499") == 1

    await pool.until(counted, "the request is counted as left by its client")
    await pool.at_rest()


async def test_a_retry_client_gets_the_answer_from_another_model(stack: Start) -> None:
    """Two models that are never right and one that always is: found with one attempt at each."""
    pool = await stack(
        engine("wrong", capability=always(0.0)),
        engine("also-wrong", capability=always(0.0)),
        engine("right", capability=always(1.0)),
        policy={"name": "laar"},
    )
    pairs = {str(uuid.uuid4()): str(uuid.uuid4()) for _ in range(20)}
    key, value = next(iter(pairs.items()))
    text = f'JSON data: {msgspec.json.encode(pairs).decode()}\nKey: "{key}". The value of the specified key is:'
    answer = await ask_async(
        pool.url,
        {"model": "auto", "messages": [{"role": "user", "content": text}], "max_tokens": 60, "temperature": 0},
        lambda said: value in said,
    )
    assert answer.correct
    assert len(answer.attempts) == len({attempt.model for attempt in answer.attempts}) <= 3
    assert answer.attempts[-1].model == "right"


async def test_the_capability_file_decides_by_language_and_length(stack: Start) -> None:
    table = {"en": [0.9, 0.9, 0.05, 0.05, 0.05, 0.05, 0.05], "ja": [0.1] * 7, "other": [0.5] * 7}
    other = {"en": [0.3] * 7, "ja": [0.9] * 7, "other": [0.5] * 7}
    pool = await stack(engine("short-english"), engine("japanese"), policy={"name": "laar"})
    file = {"task": "kv", "buckets": list(BUCKETS), "models": {"short-english": table, "japanese": other}}
    (pool.config_path.parent / "kv.json").write_bytes(msgspec.json.encode(file))
    models = {name: {"capability": "kv.json"} for name in ("short-english", "japanese")}
    pool.write(pool=pool.document["pool"] | {"models": models})

    async def taken_up() -> bool:
        async with pool.client.get(f"{pool.admin_url}/debug/config") as response:
            return bool((await response.json())["pool"]["models"])

    await pool.until(taken_up, "the new configuration is in force")
    assert "ja" in LANGUAGES
    chosen = [
        (await pool.chat(text)).headers["x-fairlead-model"]
        for text in ("What is it?", "それは何ですか", "long words " * 10_000)
    ]
    assert chosen == ["short-english", "japanese", "japanese"]


async def test_decisions_are_shown_with_their_cost(stack: Start) -> None:
    pool = await stack(engine("small"), engine("large"))
    await pool.chat(headers={"x-request-id": "find-me", "x-session-id": "secret-session"})
    (decision,) = await pool.decisions()
    assert (decision["request_id"], decision["asked"], decision["considered"]) == ("find-me", "auto", 2)
    terms = decision["best"][0]["terms"]
    latency_ms = terms["rtt_ms"] + terms["prefill_ms"] + terms["queue_ms"] + terms["decode_ms"]
    assert terms["total_ms"] == pytest.approx(latency_ms / terms["success_probability"])
    assert "secret-session" not in str(decision)


async def test_a_new_configuration_is_taken_up_and_a_bad_one_refused(stack: Start) -> None:
    pool = await stack(engine("small"), engine("large"))

    async def routes() -> dict[str, list[str]]:
        async with pool.client.get(f"{pool.admin_url}/debug/config") as response:
            return dict((await response.json())["routes"])

    pool.write(routes={"auto": ["small"], "best": ["large"]})

    async def taken_up() -> bool:
        return "best" in await routes()

    await pool.until(taken_up, "the new route is in force")
    assert (await pool.chat(model="best")).headers["x-fairlead-model"] == "large"
    pool.write(routes={"auto": ["nobody"]})

    async def refused() -> bool:
        return "the old one stays" in pool.log()

    await pool.until(refused, "the bad configuration is refused")
    assert 'no endpoint serves \\"nobody\\"' in pool.log()
    assert (await pool.chat(model="best")).status == 200


async def test_on_sigterm_running_streams_finish_and_new_requests_still_flow(stack: Start) -> None:
    pool = await stack(engine("small"))
    await pool.fault(0, kind="slow", delay_ms=1e9)
    running = asyncio.create_task(pool.chat(model="small", stream=True, max_tokens=2000))

    async def in_flight() -> bool:
        return await pool.metric("fairlead_inflight_requests") == 1

    await pool.until(in_flight, "the stream runs")
    assert pool.sidecar is not None
    pool.sidecar.send_signal(signal.SIGTERM)
    pool.engines[0].faults.set(None)

    async def no_advice() -> bool:
        return not await pool.advises()

    await pool.until(no_advice, "Envoy goes on without the sidecar")
    assert (await pool.chat(model="small")).status == 200
    answer = await running
    assert answer.body.rstrip().endswith(b"data: [DONE]")
    assert answer.headers["x-fairlead-model"] == "small"
    assert pool.sidecar.wait(timeout=WITHIN_S) == 0


async def test_a_key_keeps_addresses_of_engines_from_clients(stack: Start) -> None:
    pool = await stack(engine("small"))
    assert (await pool.chat()).headers["x-fairlead-endpoint"] == pool.engines[0].address

    pool.write(gateway=pool.document["gateway"] | {"show_endpoint": False})

    async def hidden() -> bool:
        answer = await pool.chat()
        return "x-fairlead-endpoint" not in answer.headers and answer.headers["x-fairlead-model"] == "small"

    await pool.until(hidden, "the address is not in answers any more")
