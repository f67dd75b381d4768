"""`endpoint(reply)`: an OpenAI-compatible endpoint on a free port that answers what the test's function says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

Reply = Callable[[dict[str, Any]], Awaitable[str | web.Response]]
Endpoint = Callable[[Reply], Awaitable[str]]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with AsyncExitStack() as cleanup:

        async def start(reply: Reply) -> str:
            async def handle(request: web.Request) -> web.Response:
                body = await request.json()
                said = await reply(body)
                if isinstance(said, web.Response):
                    return said
                words = len(said.split())
                usage = {"prompt_tokens": 7, "completion_tokens": words, "total_tokens": 7 + words}
                message = {"role": "assistant", "content": said}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                return web.json_response({"object": "chat.completion", "choices": [choice], "usage": usage})

            app = web.Application()
            app.router.add_post("/v1/chat/completions", handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
            await runner.setup()
            cleanup.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            return f"http://127.0.0.1:{port}"

        yield start
