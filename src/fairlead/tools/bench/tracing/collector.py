"""A collector that takes OTLP over HTTP and keeps nothing: a process of its own, as its work is not the path's.

`python -m fairlead.tools.bench.tracing.collector` prints its address as a JSON line and serves until SIGTERM;
`/received` says how many bodies it took.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import web


async def serve() -> None:
    """Listen on a free port, say which, and serve until cancelled."""
    taken = 0

    async def take(request: web.Request) -> web.Response:
        nonlocal taken
        await request.read()
        taken += 1
        return web.Response()

    async def received(_: web.Request) -> web.Response:
        return web.json_response(taken)

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    app.router.add_get("/received", received)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps(["{}:{}".format(*address[:2]) for address in runner.addresses]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
