"""An operator's commands on the admin port: `POST /migrate/...`, answered with JSON or with a sentence.

A web page that somebody has open must not command a sidecar on the same machine: `guard` refuses what comes from one,
and here any body is refused that is not declared as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from fairlead.admin.answers import json_answer
from fairlead.migration.commands import Commands, Document, RefusedError


class SessionCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """About one session, named as in requests."""

    session: str
    tenant: str = ""
    to: str = ""
    dry_run: bool = False


class EndpointCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """About one endpoint, host:port."""

    endpoint: str
    dry_run: bool = False


def add_command_pages(app: web.Application, commands: Commands) -> None:
    def of_session(act: Callable[[SessionCommand], Document]) -> Callable[[web.Request], Awaitable[web.Response]]:
        return _page(SessionCommand, act)

    def of_endpoint(act: Callable[[EndpointCommand], Document]) -> Callable[[web.Request], Awaitable[web.Response]]:
        return _page(EndpointCommand, act)

    add = app.router.add_post
    add("/migrate/move", of_session(lambda c: commands.move(c.session, c.tenant, c.to, dry_run=c.dry_run)))
    add("/migrate/session", of_session(lambda c: commands.session(c.session, c.tenant)))
    add("/migrate/cancel", of_session(lambda c: commands.cancel(c.session, c.tenant)))
    add("/migrate/drain", of_endpoint(lambda c: commands.drain(c.endpoint, dry_run=c.dry_run)))
    add("/migrate/undrain", of_endpoint(lambda c: commands.undrain(c.endpoint)))
    add("/migrate/release", of_endpoint(lambda c: commands.release(c.endpoint)))
    add("/migrate/drained", of_endpoint(lambda c: commands.drained(c.endpoint)))


def _page(
    kind: type[SessionCommand] | type[EndpointCommand], act: Callable[..., Document]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def page(request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return web.Response(status=403, text="orders come from fairlead migrate, as application/json\n")
        try:
            done = act(msgspec.json.decode(await request.read(), type=kind))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return web.Response(status=400, text=f"{error}\n")
        except RefusedError as error:
            return web.Response(status=409, text=f"{error}\n")
        return json_answer(done)

    return page
