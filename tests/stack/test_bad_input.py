"""Bad input through a real Envoy: never a 500 from an exception, never a hang, and no load left behind."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from fairlead.gateway import Mode
from tests.stack.conftest import Start, engine

HELLO = b'"messages":[{"role":"user","content":"hello"}],"max_tokens":2'
REFUSED = {
    "not JSON": b"hello",
    "empty": b" ",
    "no model": b"{" + HELLO + b"}",
    "model is a number": b'{"model":3,' + HELLO + b"}",
    "model is null": b'{"model":null,' + HELLO + b"}",
    "messages are text": b'{"model":"small","messages":"hello"}',
    "a list": b"[1,2]",
    "invalid UTF-8 in the model": b'{"model":"sm\xffall",' + HELLO + b"}",
    "a lone surrogate in the model": b'{"model":"\\ud800",' + HELLO + b"}",
    "nesting 10,000 deep": b'{"model":"small","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "a NUL between tokens": b'{"model":"small",\x00' + HELLO + b"}",
    "a byte order mark": b'\xef\xbb\xbf{"model":"small",' + HELLO + b"}",
}
PASSED = {
    "a NUL in the text": b'{"model":"small","messages":[{"role":"user","content":"a\\u0000b"}],"max_tokens":2}',
    "odd metadata": b'{"model":"small","metadata":[1],' + HELLO + b"}",
    "attempted models that do not exist": b'{"model":"auto","metadata":{"attempted_models":["x","\\u0000"]},'
    + HELLO
    + b"}",
}


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_bad_bodies_are_refused_and_odd_ones_pass(stack: Start, mode: Mode) -> None:
    pool = await stack(engine("small"), mode=mode)
    for name, body in REFUSED.items():
        answer = await pool.ask("POST", "/v1/chat/completions", body)
        assert answer.status == 400, (name, answer.body)
        assert answer.json()["error"]["message"], name
        assert answer.headers["content-type"] == "application/json"
    for name, body in PASSED.items():
        answer = await pool.ask("POST", "/v1/chat/completions", body)
        assert answer.status == 200, (name, answer.body)
    await pool.at_rest()
    assert await pool.metric("fairlead_failures_total") == 0


async def test_bodies_that_stop_in_the_middle_keep_others_out_for_seconds_at_most(stack: Start) -> None:
    """In full duplex the sidecar holds them."""
    pool = await stack(engine("small"), mode="full_duplex")

    async def stall() -> int:
        async def content() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * (1 << 20)
            await asyncio.Event().wait()

        async with pool.client.post(f"{pool.url}/v1/chat/completions", data=content()) as answer:
            return answer.status

    stalled = [asyncio.create_task(stall()) for _ in range(8)]
    try:

        async def is_full() -> bool:
            return await pool.metric("fairlead_held_body_bytes") > 8 * 29 << 20

        await pool.until(is_full, "the sidecar holds nearly as much as it may")
        large = b'{"model":"small","messages":[{"role":"user","content":"%b"}],"max_tokens":2}' % (b"y" * (20 << 20))

        async def has_room() -> bool:
            answer = await pool.ask("POST", "/v1/chat/completions", large)
            return b'"too_many_bodies"' not in answer.body

        await pool.until(has_room, "a large body finds room")
        assert await pool.metric("fairlead_bodies_displaced_total") == 1
        done, _ = await asyncio.wait(stalled, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result() for each in done] == [503]
    finally:
        for each in stalled:
            each.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)
    await pool.at_rest()


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_text_that_only_the_engine_can_judge_never_becomes_our_error(stack: Start, mode: Mode) -> None:
    pool = await stack(engine("small"), mode=mode)
    for content in (b"\xff\xfe", b"\\ud800"):
        body = b'{"model":"small","messages":[{"role":"user","content":"' + content + b'"}],"max_tokens":2}'
        answer = await pool.ask("POST", "/v1/chat/completions", body)
        assert answer.status in (200, 400), answer.body
    assert await pool.metric("fairlead_failures_total") == 0


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_a_body_of_any_depth_is_stripped_or_refused_and_leaves_no_load(stack: Start, mode: Mode) -> None:
    pool = await stack(engine("small"), engine("large"), mode=mode)
    for depth in (500, *range(965, 980), 1020):
        body = b'{"model":"auto","kv_transfer_params":{"a":1},"x":%b%b,%b}' % (b"[" * depth, b"]" * depth, HELLO)
        answer = await pool.ask("POST", "/v1/chat/completions", body)
        assert answer.status in (200, 400), (depth, answer.body)
        if answer.status == 400:  # the engine's parser has a limit, too
            assert "nested too deep" in answer.json()["error"]["message"] or "x-fairlead-endpoint" in answer.headers
            continue
        served = [each.address for each in pool.engines].index(answer.headers["x-fairlead-endpoint"])
        assert b'"kv_transfer_params":null' in base64.b64decode((await pool.last_request(served))["body"])
    await pool.at_rest()
    assert await pool.metric("fairlead_failures_total") == 0


async def test_a_pool_that_hides_its_addresses_names_no_endpoint(stack: Start) -> None:
    pool = await stack(engine("small"), gateway={"show_endpoint": False, "processor_timeout_ms": 10_000})
    answer = await pool.chat(model="small")
    assert answer.status == 200
    assert "x-fairlead-decision" in answer.headers
    assert pool.engines[0].address not in str(dict(answer.headers))


async def test_a_body_over_the_limit_is_a_413(stack: Start) -> None:
    pool = await stack(engine("small"))
    answer = await pool.ask("POST", "/v1/chat/completions", b"x" * (33 * 1024 * 1024))
    assert answer.status == 413
    assert answer.json()["error"]["code"] == "request_too_large"


async def test_headers_of_a_client_cannot_choose_an_endpoint(stack: Start) -> None:
    pool = await stack(engine("small"), engine("large"))
    answer = await pool.chat(
        model="small",
        headers={
            "x-gateway-destination-endpoint": pool.engines[1].address,
            "x-gateway-destination-endpoint-subset": pool.engines[1].address,
            "x-envoy-original-dst-host": "127.0.0.1:1",
            "x-fairlead-endpoint": "forged",
            "x-fairlead-decision": "forged",
        },
    )
    received = {name.lower(): value for name, value in (await pool.last_request(0))["headers"]}
    assert answer.headers["x-fairlead-endpoint"] == pool.engines[0].address
    assert "forged" not in received.values()
    assert "x-envoy-original-dst-host" not in received


async def test_a_tenant_that_nobody_vouches_for_ends_at_envoy(stack: Start) -> None:
    pool = await stack(engine("small"), tenants={"header": "x-tenant"})
    assert (await pool.chat(model="small", headers={"X-Tenant": "someone else"})).status == 200
    assert "x-tenant" not in {name.lower() for name, _ in (await pool.last_request(0))["headers"]}


async def test_huge_headers_are_refused_and_long_sessions_pass(stack: Start) -> None:
    pool = await stack(engine("small"))
    assert (await pool.chat(model="small", headers={"x-session-id": "s" * 20_000})).status == 200
    with contextlib.suppress(aiohttp.ClientConnectionError):  # Envoy may close before it has read all of it
        assert (await pool.chat(model="small", headers={"x-session-id": "s" * 1_000_000})).status == 431
    assert (await pool.chat(model="small", headers={"x-fairlead-attempted-models": "small," * 3000})).status == 200
    assert (await pool.chat(model="small")).status == 200


async def test_unknown_paths_pass_unread(stack: Start) -> None:
    pool = await stack(engine("small"))
    assert (await pool.ask("GET", "/version")).json()["version"]
    assert (await pool.ask("POST", "/nowhere", b"\xff not json")).status == 404
    assert (await pool.ask("PUT", "/v1/chat/completions", b'{"model":"small"}')).status == 405  # so says the engine


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"model":"auto","prompt":"hello","max_tokens":2}'),
        ("/v1/responses", b'{"model":"auto","input":"hello","max_output_tokens":2}'),
        ("/v1/embeddings", b'{"model":"auto","input":["hello"]}'),
        ("/v1/messages", b'{"model":"auto","messages":[{"role":"user","content":"hello"}],"max_tokens":2}'),
        ("/generate", b'{"text":"hello","sampling_params":{"max_new_tokens":2}}'),
    ],
)
async def test_every_api_is_routed(stack: Start, path: str, body: bytes) -> None:
    pool = await stack(engine("small", kind="sglang"))
    answer = await pool.ask("POST", path, body)
    assert answer.status == 200, answer.body
    assert answer.headers["x-fairlead-decision"] == "cost"


async def test_models_lists_the_pool_and_its_routes(stack: Start) -> None:
    pool = await stack(engine("small"), engine("large"))
    assert [entry["id"] for entry in (await pool.ask("GET", "/v1/models")).json()["data"]] == ["small", "large", "auto"]
    assert (await pool.ask("GET", "/v1/models/none")).status == 404
