"""Engines to be watched: small aiohttp servers that answer what a watch asks, with a vLLM's pages.

`python -m fairlead.tools.bench.tables.engines 100` listens on a hundred free ports, prints them as a JSON line and
serves until SIGTERM. All are one process: what they cost is not measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import cycle
from typing import Final

from aiohttp import web

from fairlead.tools.bench.decision import MODEL
from fairlead.tools.bench.tables.vllm_page import page

_PAGES: Final = 8  # in turn, so that numbers move as those of an engine at work
_MODELS: Final = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 131072}]}


def engine() -> web.Application:
    """One engine; all of them answer the same."""
    pages = cycle([page(number) for number in range(_PAGES)])

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=next(pages), content_type="text/plain")

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def models(_: web.Request) -> web.Response:
        return web.json_response(_MODELS)

    app = web.Application()
    for path, answer in (("/metrics", metrics), ("/health", health), ("/version", version), ("/v1/models", models)):
        app.router.add_get(path, answer)
    return app


async def serve(ports: int) -> None:
    """Listen on `ports` free ports of the loopback address, say which, and serve until cancelled."""
    runner = web.AppRunner(engine(), access_log=None)
    await runner.setup()
    for _ in range(ports):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps(["{}:{}".format(*address) for address in runner.addresses]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1])))
