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

from fairlead.core.ranking import Policy, Ranked
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
    app = web.Application()
    _Pages(sources, collector).add_to(app)
    add_tuner(app, sources.router)
    add_page(app)
    add_order_pages(app, Orders(sources.router))
    return app


class _Pages:
    """What may only be read."""

    def __init__(self, sources: Sources, collector: Collector) -> None:
        self._sources = sources
        self._collector = collector

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/debug/decisions", self._decisions)
        app.router.add_get("/debug/endpoints", self._endpoints)
        app.router.add_get("/debug/sessions/{id:.+}", self._session)
        app.router.add_get("/debug/status", self._status)
        app.router.add_get("/debug/config", self._config)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(text="ready\n") if self._sources.ready() else web.Response(status=503, text="draining\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=render(self._collector), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _decisions(self, request: web.Request) -> web.Response:
        wanted = request.query.get("limit", str(KEPT_DECISIONS))
        if not (wanted.isascii() and wanted.isdigit()):
            return web.Response(status=400, text="limit must be a number, for example ?limit=20\n")
        recorder = self._sources.recorder
        recorder.settle()
        newest_first = islice(reversed(recorder.decisions), min(int(wanted[:9]), KEPT_DECISIONS))
        return json_answer({"decisions": [_shown(record) for record in newest_first]})

    async def _endpoints(self, _: web.Request) -> web.Response:
        parts = []
        for number, shown in enumerate(views.endpoints(self._sources)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # a thousand take 7 ms: requests go in between
            parts.append(msgspec.json.encode(shown))
        return encoded_answer(b'{"endpoints":[' + b",".join(parts) + b"]}")

    async def _session(self, request: web.Request) -> web.Response:
        tenant = request.query.get("tenant", "")
        known = views.session(self._sources, request.match_info["id"], tenant)
        if known is None:
            return web.Response(status=404, text=views.no_such_session(self._sources, tenant) + "\n")
        return json_answer(known)

    async def _status(self, _: web.Request) -> web.Response:
        return json_answer(views.status(self._sources))

    async def _config(self, _: web.Request) -> web.Response:
        return json_answer(self._sources.config())


def _shown(record: DecisionRecord) -> dict[str, object]:
    shown = msgspec.structs.asdict(record)
    policy: Policy = shown.pop("policy")
    return shown | {"best": [_shown_choice(ranked, policy) for ranked in record.best]}


def _shown_choice(ranked: Ranked, policy: Policy) -> dict[str, object]:
    candidate, terms = ranked.candidate, policy.explain(ranked.candidate)
    shown = None if terms is None else msgspec.structs.asdict(terms) | {"total_ms": terms.total_ms()}
    return {"address": candidate.address, "model": candidate.model, "score": ranked.score, "terms": shown}
