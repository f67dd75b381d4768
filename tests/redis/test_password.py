"""The password of the store comes from a file or the environment; the configuration holds none, and no log shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from fairlead.config import Config, ConfigError, parse
from fairlead.errors import UserError
from fairlead.redis.password import VARIABLE, StorePassword
from fairlead.serving.preflight import preflight
from tests.redis.server import RedisServer
from tests.redis.world import Sidecar, until

POOL = "pool: {endpoints: [{address: '127.0.0.1:8000', model: m}]}\n"


def configured(sessions: str) -> Config:
    return parse(POOL + f"sessions: {{{sessions}}}\n")


async def test_a_new_password_in_the_file_counts_from_the_next_connection(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server._password = "hush!"
    server.start()
    (tmp_path / "password").write_text("another\n")
    with structlog.testing.capture_logs() as logs:
        sidecar = Sidecar(server.url, password=StorePassword(tmp_path / "password"))
        try:
            await until(lambda: sidecar.store.link.failures > 1, "the password is wrong")
            (tmp_path / "password").write_text("hush!\n")
            await until(sidecar.up, "the password is right")
        finally:
            await sidecar.store.stop()
            server.kill()
    assert "hush" not in str(logs)
    assert "another" not in str(logs)


async def test_a_file_that_is_gone_is_a_failure_of_the_store_told_once_in_a_sentence(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        sidecar = Sidecar("redis://127.0.0.1:9/0", password=StorePassword(tmp_path / "none"))
        try:
            await until(lambda: sidecar.store.link.failures > 2, "it has tried again")
        finally:
            await sidecar.store.stop()
    (entry,) = logs
    assert entry["log_level"] == "warning"
    assert f"{tmp_path / 'none'} cannot be read (No such file or directory)" in entry["cause"]


def test_without_a_file_it_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert StorePassword().read() is None
    monkeypatch.setenv(VARIABLE, "hush")
    assert StorePassword().read() == "hush"


@pytest.mark.parametrize("held", [b"", b"\n", b"hush\nhush", b"hush" * 2000, b"\xff\xfe"])
def test_a_file_that_holds_no_password_is_refused_without_showing_it(tmp_path: Path, held: bytes) -> None:
    (tmp_path / "password").write_bytes(held)
    with pytest.raises(UserError, match=r"sessions\.store_password_file: .*password") as refused:
        StorePassword(tmp_path / "password").read()
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ("store_password_file: p", "store: memory needs no password"),
        ("store: 'redis://:hush@h:1', store_password_file: p", "store has a password too"),
    ],
)
def test_two_passwords_or_one_for_nothing_are_mistakes(sessions: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"sessions\.store_password_file") as refused:
        configured(sessions)
    assert message in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_missing_file_is_found_before_serving(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sessions\.store_password_file: .*cannot be read"):
        preflight(configured("store: 'redis://h:1', store_password_file: none"), tmp_path)


def test_a_user_in_the_url_may_have_a_password_in_the_file() -> None:
    assert configured("store: 'redis://sidecar@h:1', store_password_file: p").sessions.store_password_file == "p"
