"""The admin port: health for probes, Prometheus metrics, and pages that explain what the router did.

It answers anyone who reaches it, so it listens on loopback unless told otherwise. It shows no prompt and no secret.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from fairlead.core.cost import CostTerms
from fairlead.core.router import Choice
from fairlead.migration.orders import Orders
from fairlead.telemetry import views
from fairlead.telemetry.answers import encoded_answer, json_answer
from fairlead.telemetry.metrics import render
from fairlead.telemetry.order_pages import add_order_pages
from fairlead.telemetry.pages import add_page
from fairlead.telemetry.recorder import KEPT_DECISIONS, DecisionRecord
from fairlead.telemetry.tuner import add_tuner
from fairlead.telemetry.views import Sources

_AT_ONCE: Final = 64  # endpoints


def admin_app(sources: Sources, collector: Collector) -> web.Application:
    """The pages."""
    recorder = sources.recorder

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if sources.ready() else web.Response(status=503, text="draining\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=render(collector), headers={"content-type": CONTENT_TYPE_LATEST})

    async def decisions(request: web.Request) -> web.Response:
        wanted = request.query.get("limit", str(KEPT_DECISIONS))
        if not (wanted.isascii() and wanted.isdigit()):
            return web.Response(status=400, text="limit must be a number, for example ?limit=20\n")
        newest_first = islice(reversed(recorder.decisions), min(int(wanted[:9]), KEPT_DECISIONS))
        return json_answer({"decisions": [_shown(record) for record in newest_first]})

    async def endpoints(_: web.Request) -> web.Response:
        parts = []
        for number, shown in enumerate(views.endpoints(sources)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # a thousand take 7 ms: requests go in between
            parts.append(msgspec.json.encode(shown))
        return encoded_answer(b'{"endpoints":[' + b",".join(parts) + b"]}")

    async def session(request: web.Request) -> web.Response:
        tenant = request.query.get("tenant", "")
        known = views.session(sources, request.match_info["id"], tenant)
        if known is None:
            return web.Response(status=404, text=views.no_such_session(sources, tenant) + "\n")
        return json_answer(known)

    async def status(_: web.Request) -> web.Response:
        return json_answer(views.status(sources))

    async def in_force(_: web.Request) -> web.Response:
        return json_answer(sources.config())

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/debug/decisions", decisions)
    app.router.add_get("/debug/endpoints", endpoints)
    app.router.add_get("/debug/sessions/{id:.+}", session)
    app.router.add_get("/debug/status", status)
    app.router.add_get("/debug/config", in_force)
    add_tuner(app, sources.router)
    add_page(app)
    add_order_pages(app, Orders(sources.router))
    return app


def _shown(record: DecisionRecord) -> dict[str, object]:
    return msgspec.structs.asdict(record) | {"best": [_shown_choice(choice) for choice in record.best]}


def _shown_choice(choice: Choice) -> dict[str, object]:
    terms: CostTerms | None = choice.terms
    shown = msgspec.structs.asdict(choice)
    if terms is not None:
        shown["terms"] = msgspec.structs.asdict(terms) | {"total_ms": terms.total_ms()}
    return shown
