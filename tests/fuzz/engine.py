"""Engines that behave as a request asks (`x-behave`), on four ports that are printed as a JSON line."""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

_ANSWER = {
    "id": "x", "object": "chat.completion", "created": 0, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "100"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9},
}  # fmt: skip
_EVENTS = (b"data: %b\n\n" % json.dumps(_ANSWER).encode(),) * 5 + (b"data: [DONE]\n\n",)
_PAGE = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


async def _handle(request: web.Request) -> web.StreamResponse:
    if request.path == "/metrics":
        return web.Response(text=_PAGE)
    behave = request.headers.get("x-behave", "")
    while await request.content.readany():
        pass
    if behave in ("sse", "cut", "slow"):
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for number, event in enumerate(_EVENTS):
            await answer.write(event)
            if behave == "slow":
                await asyncio.sleep(0.1)
            elif behave == "cut" and number == 2:
                assert request.transport is not None
                request.transport.abort()
        return answer
    if behave == "no-answer":
        assert request.transport is not None
        request.transport.abort()
    if behave == "garbage":
        return web.Response(body=b"{" * 3000, content_type="application/json")
    if behave == "usage":
        return web.Response(
            text='{"usage":{"prompt_tokens":-5,"completion_tokens":1e99}}', content_type="application/json"
        )
    return web.json_response(_ANSWER, status=500 if behave == "500" else 200)


async def main(ports: int) -> None:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", _handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for _ in range(ports):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps([f"{host}:{port}" for host, port in runner.addresses]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
