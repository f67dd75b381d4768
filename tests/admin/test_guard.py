"""Web pages of somebody else get nothing from the admin port, and change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from fairlead.admin.app import admin_app
from fairlead.admin.guard import _may_be_named
from tests.extproc.world import make_services

Client = TestClient[Any, Any]
PAGES = (
    "/", "/page/status.js", "/healthz", "/readyz", "/metrics", "/debug/decisions", "/debug/endpoints", "/debug/status",
    "/debug/config", "/debug/waiting", "/debug/calibration", "/debug/tuner", "/debug/sessions/s", "/debug/requests/r",
    "/debug/rates", "/debug/cascades", "/debug/moves", "/no/such/page",
)  # fmt: skip
ORDERS = ("/debug/tuner", *(f"/migrate/{name}" for name in ("move", "session", "cancel", "drain", "undrain")))


@pytest.fixture
def app() -> web.Application:
    return admin_app(make_services(), names=("Fairlead.prod.svc",))


@pytest.fixture
async def admin(app: web.Application) -> AsyncIterator[Client]:
    async with TestClient(TestServer(app)) as client:
        yield client


def test_every_page_and_every_order_is_in_these_lists(app: web.Application) -> None:
    paths = {route.resource.canonical for route in app.router.routes() if route.resource is not None}
    ours = {*PAGES, *ORDERS, "/migrate/drained", "/migrate/release", "/debug/sessions/{id}", "/debug/requests/{id}"}
    assert {path for path in paths if not path.startswith("/page/")} <= ours


@pytest.mark.parametrize("path", PAGES)
async def test_a_name_that_somebody_points_at_us_gets_nothing(admin: Client, path: str) -> None:
    for host in (
        "evil.example",
        "evil.example:9003",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "a@127.0.0.1",
        "127.0.0.1:80@evil.example",
        "[::1]@evil.example",
    ):
        response = await admin.get(path, headers={"Host": host})
        assert (response.status, "listen.admin_hosts" in await response.text()) == (403, True), host


@pytest.mark.parametrize("path", ORDERS)
async def test_a_name_that_somebody_points_at_us_changes_nothing(admin: Client, path: str) -> None:
    response = await admin.post(path, json={}, headers={"Host": "evil.example"})
    assert (response.status, "listen.admin_hosts" in await response.text()) == (403, True)


@pytest.mark.parametrize("path", ORDERS)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://127.0.0.1:9003"])
async def test_a_web_page_changes_nothing_even_at_our_own_address(admin: Client, path: str, origin: str) -> None:
    response = await admin.post(path, json={"state": "frozen", "session": "s"}, headers={"Origin": origin})
    assert (response.status, await response.text()) == (
        403,
        "web pages may not change anything here; use the commands of fairlead, or curl\n",
    )


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.1.2.3:9003", "[::1]:9003", "[fe80::1]", "localhost:1", "LOCALHOST.", "fairlead.prod.svc:9003",
     "FAIRLEAD.prod.svc."],
)  # fmt: skip
async def test_scrapes_by_address_by_localhost_and_by_listed_names_are_answered(admin: Client, host: str) -> None:
    assert (await admin.get("/metrics", headers={"Host": host})).status == 200


async def test_two_hosts_are_one_too_many(app: web.Application) -> None:
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /debug/config HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()


async def test_a_probe_of_http_1_0_needs_no_host(app: web.Application) -> None:
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()


@given(st.text(max_size=30), st.sampled_from(["", ":80", "."]))
def test_only_addresses_and_listed_names_may_be_named(name: str, rest: str) -> None:
    if any(character.isalpha() and character.lower() not in "abcdef" for character in name):
        assert not _may_be_named(name + rest, {"localhost"}) or name.lower().rstrip(".:0123456789") == "localhost"
