"""JSON as the admin port answers it: never kept by a cache, never taken for anything else by a browser."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def json_answer(document: object) -> web.Response:
    """`document` is anything that msgspec can encode."""
    return encoded_answer(msgspec.json.encode(document))


def encoded_answer(body: bytes) -> web.Response:
    """`body` is JSON already."""
    return web.Response(body=body, content_type="application/json", headers=_HEADERS)
