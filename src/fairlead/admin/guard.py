"""Who may ask the admin port: anyone who reaches it, but no web page of somebody else that an operator has open.

A page cannot name a host that is not its own, so a name that somebody points at this machine (DNS rebinding) is refused
by the `Host` that comes with it: only IP addresses, localhost and names that the configuration lists are answered. What
changes something is refused, in addition, with an `Origin`, which every browser sends and no tool of ours does.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_READING: Final = frozenset({"GET", "HEAD"})
_LONGEST_SHOWN: Final = 80
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def guard(names: Collection[str]) -> Middleware:
    """`names` are host names that may be asked for, besides IP addresses and localhost."""
    allowed = frozenset(map(_plain, names)) | {"localhost"}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 and (hosts or request.version >= (1, 1)):
            return _refused(400, "send one Host header")
        if hosts and not _may_be_named(hosts[0], allowed):
            shown = hosts[0][:_LONGEST_SHOWN]
            return _refused(
                403,
                f'the admin port is not known as "{shown}"; ask by IP address or localhost, or add the name to '
                "listen.admin_hosts",
            )
        if request.method not in _READING and "Origin" in request.headers:
            return _refused(403, "web pages may not change anything here; use the commands of fairlead, or curl")
        return await handler(request)

    return check


def _may_be_named(host: str, allowed: Collection[str]) -> bool:
    name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
    if _plain(name) in allowed:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _plain(name: str) -> str:
    return name.lower().rstrip(".")


def _refused(status: int, sentence: str) -> web.Response:
    return web.Response(status=status, text=sentence + "\n", headers=_HEADERS)
