"""Who may ask the admin port: anyone who reaches it, but no web page of somebody else that an operator has open.

A page cannot name a host that is not its own, so a name that somebody points at this machine (DNS rebinding) is refused
by the `Host` that comes with it: only IP addresses, localhost and names that the configuration lists are answered. What
changes something needs the token, too. With an `Origin`, which every browser sends and no tool of ours does, it is
refused unless that is this port's own: then it is our status page.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from fairlead.admin.token import AdminToken

_READING: Final = frozenset({"GET", "HEAD"})
_LONGEST_SHOWN: Final = 80
_PORT: Final = re.compile(r":[0-9]{0,5}", re.ASCII)
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def guard(names: Collection[str], token: AdminToken) -> Middleware:
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
        if request.method not in _READING:
            if "Origin" in request.headers and (token.path is None or not _is_ours(request)):
                return _refused(403, "web pages may not change anything here; use the commands of fairlead, or curl")
            refusal = token.refusal(request.headers.get("Authorization", ""))
            if refusal is not None:
                return _refused(*refusal)
        return await handler(request)

    return check


def _is_ours(request: web.Request) -> bool:
    """Whether a page of this port asks; https where a proxy stands before it."""
    host = request.headers.get("Host", "")
    return request.headers.getall("Origin") in ([f"http://{host}"], [f"https://{host}"])


def _may_be_named(host: str, allowed: Collection[str]) -> bool:
    end = host.find("]") + 1 if host.startswith("[") else len(host.partition(":")[0])
    name, port = host[:end], host[end:]
    if port and not _PORT.fullmatch(port):
        return False
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
