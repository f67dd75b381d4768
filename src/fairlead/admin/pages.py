"""The status page for people: static files of this package, sent with headers that let nothing else in.

The page has no framework, no build step and nothing from the internet. It asks for the JSON next to it and writes every
name into the document as text, never as markup: names come from clients and configurations.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a new version of the sidecar brings a new page
}
_INDEX: Final = "index.html"


def add_page(app: web.Application) -> None:
    """Serve the page at `/` and its parts below `/page/`. Paths in it are relative, so it works behind a prefix."""
    for file in resources.files("fairlead.admin").joinpath("page").iterdir():
        kind = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            app.router.add_get("/" if file.name == _INDEX else f"/page/{file.name}", _serving(file.read_bytes(), kind))


def _serving(body: bytes, content_type: str) -> Handler:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)

    return serve
