"""What a simulated SGLang does that a vLLM does not: its pages, its full queue, its names of adapters.

As a real 0.5.23 does: `/health` generates a token and looks once a second for one, whosever it is; an unknown model is
answered by the base model; a full queue is a 503, and in a stream a 200 whose first event is the error.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from aiohttp import web

from fairlead.tools.simulate import wire
from fairlead.tools.simulate.engine import Engine

VERSION: Final = "0.5.23"
_HEALTH_S: Final = 1.0
_HEALTH_TRIES: Final = 20  # then it gives up
_STREAM_HEADERS: Final = {"content-type": "text/event-stream; charset=utf-8"}
_FULL: Final = {
    "object": "error",
    "message": "The request queue is full.",
    "type": "SERVICE_UNAVAILABLE",
    "param": None,
    "code": 503,
}


async def health(engine: Engine, time_scale: float) -> web.StreamResponse:
    """An idle engine generates its token at once; a busy one is well once anybody got one."""
    before = engine.counters.generated
    for _ in range(_HEALTH_TRIES):
        await asyncio.sleep(_HEALTH_S / time_scale)
        if not engine.running or engine.counters.generated > before:
            return web.Response()
    return web.Response(status=503)


async def ready(_request: web.Request) -> web.StreamResponse:
    return web.Response()


def server_info(model: str, version: str, engine: Engine, more: dict[str, Any]) -> web.StreamResponse:
    """The few of its some 300 fields that a router reads; `more` are of this server."""
    parameters = engine.parameters
    info = {
        "version": version or VERSION,
        "served_model_name": model,
        "page_size": parameters.block_size,
        "max_total_num_tokens": parameters.num_blocks * parameters.block_size,
        "disaggregation_mode": "null",
        "max_queued_requests": None,
        "enable_metrics": True,
        "enable_cache_report": True,
        "kv_events": None,
        "status": "ready",
    }
    return wire.json_response(info | more)


async def refuse(request: web.Request, *, stream: bool) -> web.StreamResponse:
    """The queue is full."""
    if not stream:
        return wire.json_response(_FULL, 503)
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    await response.prepare(request)
    await response.write(b"data: %b\n\ndata: [DONE]\n\n" % msgspec.json.encode({"error": _FULL}))
    await response.write_eof()
    return response
