"""How a simulated engine writes to a connection: answers, OpenAI's error envelope, and ways to break it."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final, Never

import msgspec
from aiohttp import web

CUT: Final = web.RequestKey("cut", bool)
"""Set on a request whose response is to be cut in the middle."""

MISCOUNT: Final = web.RequestKey("miscount", bool)
"""Set on a request whose prompt tokens are to be counted wrong."""

_ERROR_TYPES: Final = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}
_LINGER_RESETS: Final = struct.pack("ii", 1, 0)  # closing then sends RST and drops what is unsent


def json_response(payload: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(payload), status=status, content_type="application/json")


def error_response(status: int, message: str, param: str | None = None) -> web.Response:
    """OpenAI's envelope with vLLM's type and code."""
    kind = _ERROR_TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return json_response({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


async def send_whole(request: web.Request, payload: dict[str, Any]) -> web.StreamResponse:
    """A JSON body, or its first half if the response is to be cut."""
    if request.get(CUT):
        body = msgspec.json.encode(payload)
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        await close(request)
    return json_response(payload)


async def until_the_client_leaves() -> Never:
    """The handler of a closed connection is cancelled; see `handler_cancellation` in `simulate.server`."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody sets has ended")


async def close(request: web.Request) -> Never:
    """End the connection after what was written, in the middle of the response."""
    if request.transport is not None:
        request.transport.close()
    await until_the_client_leaves()


async def reset(request: web.Request) -> Never:
    """Reset the connection."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESETS)
        request.transport.abort()
    await until_the_client_leaves()
