"""`fairlead doctor`: what it sees of servers that give all, some and almost nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from fairlead.engines.examine import examine
from fairlead.engines.findings import Finding, findings, text
from fairlead.errors import UserError
from fairlead.processes import free_ports
from fairlead.tools.simulate.server import EngineOptions, running_engine

KEY = "secret"


async def found(url: str, **headers: str) -> dict[str, Finding]:
    return {finding.topic: finding for finding in findings(await examine(url, headers))}


@asynccontextmanager
async def plain_server(*, key: str = "", most_bytes: int = 1 << 20) -> AsyncIterator[str]:
    """An OpenAI-compatible server that is no engine we know: an answer without counts, and no other page.

    `most_bytes` is of a prompt.
    """

    async def models(request: web.Request) -> web.Response:
        if key and request.headers.get("authorization") != f"Bearer {key}":
            return web.Response(status=401)
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "me"}]})

    async def chat(request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        if body["model"] != "tiny":
            return web.json_response({"error": {"message": "no such model"}}, status=400)
        if len(body["messages"][0]["content"]) > most_bytes:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        return web.json_response({"id": "1", "object": "chat.completion", "choices": [choice]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_a_simulated_vllm_gives_all_but_a_word_about_its_kv_events() -> None:
    async with running_engine(EngineOptions(model="m")) as engine:
        seen = await found(f"http://{engine.address}")
    assert {topic for topic, finding in seen.items() if finding.verdict != "gives"} == {"KV events"}


async def test_of_an_sglang_it_says_what_its_health_costs_and_how_a_full_queue_shows() -> None:
    info = {"max_queued_requests": 4, "kv_events": {"publisher": "zmq", "endpoint_port_base": 5557, "topic": ""}}
    options = EngineOptions(model="m", kind="sglang", adapters=("sql",), info=info)
    async with running_engine(options) as engine:
        seen = await found(f"http://{engine.address}")
    assert "/health takes 1" in seen["health"].saw
    assert "14 of those that are read" in seen["metrics"].saw
    assert "requests name them m:sql; an unknown model is answered by the base model" in seen["adapters"].saw
    assert (seen["queue"].verdict, seen["queue"].do) == ("mind", "no --max-queued-requests")
    assert (seen["KV events"].verdict, "5557" in seen["KV events"].saw) == ("gives", True)


async def test_a_server_without_prefix_caching_is_told_from_one_that_does_not_report_it() -> None:
    options = EngineOptions(model="m", kind="sglang", info={"disable_radix_cache": True})
    async with running_engine(options) as engine:
        cached = (await found(f"http://{engine.address}"))["cached tokens"]
    assert (cached.verdict, cached.do) == ("withholds", "prefix caching")
    assert "started without" in cached.saw


async def test_a_server_for_prefill_alone_is_said_to_be_left_out() -> None:
    options = EngineOptions(model="m", kind="sglang", info={"disaggregation_mode": "prefill"})
    async with running_engine(options) as engine:
        server = (await found(f"http://{engine.address}"))["server"]
    assert (server.verdict, server.do) == ("withholds", "no --disaggregation-mode")


async def test_a_plain_server_withholds_most_and_each_line_says_what_is_lost() -> None:
    async with plain_server() as url:
        seen = await examine(url, {})
    withheld = {finding.topic for finding in findings(seen) if finding.verdict == "withholds"}
    assert withheld == {"server", "usage", "cached tokens", "streaming", "metrics"}
    assert all(finding.without for finding in findings(seen) if finding.verdict == "withholds")
    page = text(seen)
    assert page.startswith(f"{url}: of an unknown kind, treated as vLLM")
    assert "--enable" not in page  # whose flags these would be is not known


async def test_a_server_of_a_short_context_is_asked_less() -> None:
    async with plain_server(most_bytes=500) as url:
        assert (await examine(url, {})).first.status == 200
    async with plain_server(most_bytes=5) as url:
        usage = (await found(url))["usage"]
    assert (usage.verdict, "a chat request gets 400" in usage.saw, "too long" in usage.saw) == ("withholds", True, True)


async def test_a_server_with_a_key_is_asked_with_it() -> None:
    async with plain_server(key=KEY) as url:
        with pytest.raises(UserError, match="answers 401; give the server's key with --api-key"):
            await examine(url, {})
        assert (await examine(url, {"authorization": f"Bearer {KEY}"})).cards[0].name == "tiny"


async def test_where_nothing_listens_it_says_so() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UserError, match=rf"http://127.0.0.1:{port}/v1/models does not answer"):
        await examine(f"http://127.0.0.1:{port}", {})
