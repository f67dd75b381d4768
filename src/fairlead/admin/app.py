"""The admin port: health for probes, Prometheus metrics, and pages that explain what the router did.

It answers anyone who reaches it, but for web pages of somebody else (`guard`), so it listens on loopback unless told
otherwise. It shows no prompt and no secret. What changes something needs a token (`token`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics import exposition as openmetrics

from fairlead.admin import calibration, cascade, decisions, moves, rates, views, waiting
from fairlead.admin.answers import encoded_answer, json_answer
from fairlead.admin.drain_pages import add_command_pages
from fairlead.admin.guard import guard
from fairlead.admin.metrics import FairleadCollector, render
from fairlead.admin.pages import add_page
from fairlead.admin.token import AdminToken
from fairlead.admin.tuner import add_tuner
from fairlead.extproc.recorder import KEPT_DECISIONS
from fairlead.extproc.services import Services
from fairlead.migration.commands import Commands

_AT_ONCE: Final = 64  # endpoints
_OPEN_METRICS: Final = "application/openmetrics-text"


def admin_app(services: Services, names: Collection[str] = (), token: AdminToken | None = None) -> web.Application:
    """`names` are the host names that the port is known by, besides IP addresses and localhost. No token: read-only."""
    app = web.Application(middlewares=[guard(names, token or AdminToken())])
    _Pages(services).add_to(app)
    add_tuner(app, services.router)
    add_page(app)
    add_command_pages(app, Commands(services.router))
    return app


class _Pages:
    """What may only be read."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._collector = FairleadCollector(services)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/debug/decisions", self._decisions)
        app.router.add_get("/debug/requests/{id:.+}", self._story)
        app.router.add_get("/debug/endpoints", self._endpoints)
        app.router.add_get("/debug/sessions/{id:.+}", self._session)
        app.router.add_get("/debug/status", self._status)
        app.router.add_get("/debug/config", self._config)
        app.router.add_get("/debug/waiting", self._waiting)
        app.router.add_get("/debug/rates", self._rates)
        app.router.add_get("/debug/calibration", self._calibration)
        app.router.add_get("/debug/cascades", self._cascades)
        app.router.add_get("/debug/moves", self._moves)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        services = self._services
        text = "no endpoints\n" if services.state == "ready" and not services.is_ready else f"{services.state}\n"
        return web.Response(status=200 if services.is_ready else 503, text=text)

    async def _metrics(self, request: web.Request) -> web.Response:
        """In OpenMetrics' format where that has more to say: exemplars, by which a duration leads to a trace."""
        wanted = ",".join(request.headers.getall("accept", ()))
        is_open = self._services.tracer.is_on and _OPEN_METRICS in wanted
        content_type = openmetrics.CONTENT_TYPE_LATEST if is_open else CONTENT_TYPE_LATEST
        body = render(self._collector, open_metrics=is_open)
        return web.Response(body=body, headers={"content-type": content_type})

    async def _decisions(self, request: web.Request) -> web.Response:
        wanted = request.query.get("limit", str(KEPT_DECISIONS))
        if not (wanted.isascii() and wanted.isdigit()):
            return web.Response(status=400, text="limit must be a number, for example ?limit=20\n")
        newest_first = decisions.latest(self._services.recorder, min(int(wanted[:9]), KEPT_DECISIONS))
        return json_answer({"decisions": newest_first})

    async def _story(self, request: web.Request) -> web.Response:
        story = decisions.story(self._services.recorder, request.match_info["id"])
        if story is None:
            return web.Response(status=404, text=decisions.NO_SUCH_REQUEST + "\n")
        return json_answer(story)

    async def _endpoints(self, _: web.Request) -> web.Response:
        parts = []
        for number, shown in enumerate(views.endpoints(self._services)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # a thousand take 7 ms: requests go in between
            parts.append(msgspec.json.encode(shown))
        return encoded_answer(b'{"endpoints":[' + b",".join(parts) + b"]}")

    async def _session(self, request: web.Request) -> web.Response:
        tenant = request.query.get("tenant", "")
        known = views.session(self._services, request.match_info["id"], tenant)
        if known is None:
            return web.Response(status=404, text=views.no_such_session(self._services, tenant) + "\n")
        return json_answer(known)

    async def _status(self, _: web.Request) -> web.Response:
        return json_answer(views.status(self._services))

    async def _config(self, _: web.Request) -> web.Response:
        return json_answer(views.config(self._services))

    async def _waiting(self, _: web.Request) -> web.Response:
        services = self._services
        return json_answer({"waiting": waiting.document(services.admission, services.clock_s())})

    async def _rates(self, _: web.Request) -> web.Response:
        return json_answer({"rates": await rates.document(self._services.rates, self._services.clock_s())})

    async def _calibration(self, _: web.Request) -> web.Response:
        return json_answer({"calibration": calibration.document(self._services.calibration)})

    async def _cascades(self, _: web.Request) -> web.Response:
        return json_answer(cascade.document(self._services.cascades.counts))

    async def _moves(self, _: web.Request) -> web.Response:
        services = self._services
        return json_answer(moves.document(services.router.planner, services.mover))
