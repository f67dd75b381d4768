"""What changes something over the admin port needs the token of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fairlead.admin.app import admin_app
from fairlead.admin.token import AdminToken, read_token
from fairlead.config import load
from fairlead.errors import UserError
from fairlead.serving.preflight import preflight
from tests.extproc.world import make_services

Client = TestClient[Any, Any]
TOKEN = "a" * 48
DRAIN = {"endpoint": "10.0.0.1:1", "dry_run": True}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "admin.token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture
async def admin(file: Path) -> AsyncIterator[Client]:
    async with TestClient(TestServer(admin_app(make_services(), token=AdminToken(file)))) as client:
        yield client


async def drain(admin: Client, token: str | None, **headers: str) -> tuple[int, str]:
    shown = {} if token is None else {"Authorization": f"Bearer {token}"}
    response = await admin.post("/migrate/drain", json=DRAIN, headers=shown | headers)
    return response.status, await response.text()


async def test_without_a_file_the_port_only_reads_and_says_what_to_do() -> None:
    async with TestClient(TestServer(admin_app(make_services()))) as admin:
        status, sentence = await drain(admin, TOKEN)
        assert (status, "listen.admin_token_file" in sentence) == (403, True)
        assert (await admin.get("/debug/status")).status == 200


def test_a_token_of_any_bytes_is_only_a_wrong_one(file: Path) -> None:
    refusal = AdminToken(file).refusal(b"Bearer \xff\xfe".decode(errors="surrogateescape"))  # as aiohttp reads headers
    assert refusal is not None
    assert refusal[0] == 401


async def test_with_the_token_an_action_is_done(admin: Client) -> None:
    assert (await drain(admin, TOKEN))[0] == 200


@pytest.mark.parametrize("token", [None, "", "b" * 48, TOKEN[:-1], TOKEN + "a", "ä" * 48])
async def test_without_the_right_token_it_is_not_and_the_answer_does_not_show_it(
    admin: Client, token: str | None
) -> None:
    status, sentence = await drain(admin, token)
    assert (status, TOKEN in sentence) == (401, False)


async def test_reading_needs_no_token(admin: Client) -> None:
    assert (await admin.get("/debug/endpoints")).status == 200


async def test_a_token_is_read_again_when_its_file_changes(admin: Client, file: Path) -> None:
    write = file.write_text
    write("c" * 48)
    assert (await drain(admin, TOKEN))[0] == 401
    assert (await drain(admin, "c" * 48))[0] == 200
    write("")
    assert (await drain(admin, "c" * 48))[0] == 503


async def test_the_status_page_of_this_port_may_act_and_pages_of_others_may_not(admin: Client) -> None:
    host = f"127.0.0.1:{admin.port}"
    assert (await drain(admin, TOKEN, Host=host, Origin=f"http://{host}"))[0] == 200
    assert (await drain(admin, TOKEN, Host=host, Origin=f"https://{host}"))[0] == 200  # a proxy with TLS before it
    for origin in ("http://evil.example", "null", "", f"http://{host}0", f"http://127.0.0.1:{(admin.port or 0) - 1}"):
        status, sentence = await drain(admin, TOKEN, Host=host, Origin=origin)
        assert (status, "web pages" in sentence) == (403, True), origin


@pytest.mark.parametrize("text", ["", "short", "two words that are long enough", "a" * 5000, "\u00e4" * 30])
def test_a_file_without_a_token_is_refused_with_what_to_write(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(UserError, match="openssl rand -hex 24"):
        read_token(file, "listen.admin_token_file")


def test_check_reports_a_token_file_that_is_missing_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "fairlead.yaml"
    path.write_text("listen: {admin_token_file: no.token}\npool: {endpoints: [{address: '127.0.0.1:1', model: m}]}\n")
    with pytest.raises(UserError, match=r"fairlead.yaml:1: listen.admin_token_file: .*cannot be read"):
        preflight(load(path), tmp_path)
