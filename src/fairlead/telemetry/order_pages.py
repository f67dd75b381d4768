"""An operator's orders on the admin port: `POST /migrate/...`, answered with JSON or with a sentence.

A web page that somebody has open must not give orders to a sidecar on the same machine: a request with an Origin, as
every browser sends with a POST, is refused, and so is any body that is not declared as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from fairlead.migration.orders import Document, Orders, RefusedError
from fairlead.telemetry.answers import json_answer


class SessionOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """About one session, named as in requests."""

    session: str
    tenant: str = ""
    to: str = ""
    dry_run: bool = False


class EndpointOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """About one endpoint, host:port."""

    endpoint: str
    dry_run: bool = False


def add_order_pages(app: web.Application, orders: Orders) -> None:
    def of_session(act: Callable[[SessionOrder], Document]) -> Callable[[web.Request], Awaitable[web.Response]]:
        return _page(SessionOrder, act)

    def of_endpoint(act: Callable[[EndpointOrder], Document]) -> Callable[[web.Request], Awaitable[web.Response]]:
        return _page(EndpointOrder, act)

    add = app.router.add_post
    add("/migrate/move", of_session(lambda o: orders.move(o.session, o.tenant, o.to, dry_run=o.dry_run)))
    add("/migrate/session", of_session(lambda o: orders.session(o.session, o.tenant)))
    add("/migrate/cancel", of_session(lambda o: orders.cancel(o.session, o.tenant)))
    add("/migrate/drain", of_endpoint(lambda o: orders.drain(o.endpoint, dry_run=o.dry_run)))
    add("/migrate/undrain", of_endpoint(lambda o: orders.undrain(o.endpoint)))
    add("/migrate/release", of_endpoint(lambda o: orders.release(o.endpoint)))
    add("/migrate/drained", of_endpoint(lambda o: orders.drained(o.endpoint)))


def _page(
    kind: type[SessionOrder] | type[EndpointOrder], act: Callable[..., Document]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def page(request: web.Request) -> web.Response:
        if "Origin" in request.headers or request.content_type != "application/json":
            return web.Response(status=403, text="orders come from fairlead migrate, as application/json\n")
        try:
            done = act(msgspec.json.decode(await request.read(), type=kind))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return web.Response(status=400, text=f"{error}\n")
        except RefusedError as error:
            return web.Response(status=409, text=f"{error}\n")
        return json_answer(done)

    return page
