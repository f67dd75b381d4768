"""How a sidecar starts and ends: in order, and completely, whatever fails on the way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from structlog.testing import capture_logs

from fairlead.addresses import host_and_port
from fairlead.errors import UserError
from fairlead.extproc.native_server import NativeServer
from fairlead.serving.sidecar import Sidecar
from tests.serving.world import POOL, ConfigFile

STEPS = ("requests", "cascades", "mover", "store", "KV events", "decision log", "observers")


class Ends:
    """Which steps of the drain happened, in order; those in `failing` raise once they did."""

    def __init__(self, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch, *failing: str) -> None:
        self.happened: list[str] = []
        self._failing = failing
        services = sidecar.services
        for step, owner, name in (
            ("requests", NativeServer, "drain"),
            ("cascades", services.cascades.escalation, "close"),
            ("mover", services.mover, "stop"),
            ("store", services.store, "stop"),
            ("KV events", services.kv_following, "stop"),
            ("decision log", services.log, "stop"),
            ("observers", services.observers, "stop"),
        ):
            monkeypatch.setattr(owner, name, self._recorded(step, getattr(owner, name)))

    def _recorded(self, step: str, real: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def end(*arguments: object) -> None:
            await real(*arguments)
            self.happened.append(step)
            if step in self._failing:
                raise RuntimeError(f"{step} on purpose")

        return end


def is_free(address: str) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return one.connect_ex(host_and_port(address)) != 0


@pytest.mark.parametrize("failing", [(step,) for step in STEPS] + [STEPS], ids=lambda steps: "+".join(steps))
async def test_if_steps_of_the_drain_raise_all_others_still_happen_and_each_is_logged(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...]
) -> None:
    sidecar = Sidecar(file.write())
    ends = Ends(sidecar, monkeypatch, *failing)
    with capture_logs() as logged:
        async with sidecar:
            pass
    assert ends.happened == list(STEPS)
    assert is_free(file.listen["admin"])
    assert is_free(file.listen["grpc"])
    assert len(asyncio.all_tasks()) == 1, "only this test's"
    failures = [entry for entry in logged if entry["log_level"] == "error"]
    assert [entry["step"] for entry in failures] == list(failing)
    assert all(entry["exc_info"] for entry in failures)


async def test_a_step_that_is_cancelled_leaves_none_out(file: ConfigFile, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = Sidecar(file.write())
    hanging = asyncio.Event()

    async def hang(*_: object) -> None:
        hanging.set()
        await asyncio.Event().wait()

    async def serve() -> None:
        async with sidecar:
            pass

    monkeypatch.setattr(sidecar.services.store, "stop", hang)
    ends = Ends(sidecar, monkeypatch)
    serving = asyncio.create_task(serve())
    await hanging.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert ends.happened == [step for step in STEPS if step != "store"]
    assert is_free(file.listen["admin"])


@pytest.mark.parametrize("key", ["grpc", "admin"])
async def test_an_address_that_is_taken_is_named_and_what_had_started_has_ended(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    sidecar = Sidecar(file.write())
    ends = Ends(sidecar, monkeypatch)
    sentence = rf"listen\.{key}: .* cannot be used.* is another sidecar running there"
    with socket.create_server(host_and_port(file.listen[key])), pytest.raises(UserError, match=sentence):
        await sidecar.__aenter__()
    assert ends.happened == (list(STEPS[1:]) if key == "grpc" else [])
    assert is_free(file.listen["admin"])
    assert len(asyncio.all_tasks()) == 1


async def test_what_the_configuration_names_and_is_not_there_ends_the_start(file: ConfigFile) -> None:
    path = file.write(pool=POOL | {"models": {"small": {"capability": "missing.json"}}})
    with pytest.raises(UserError, match=r"pool\.models\.small\.capability"):
        await Sidecar(path).__aenter__()
    assert len(asyncio.all_tasks()) == 1
    assert is_free(file.listen["admin"])


async def test_it_is_ready_when_all_is_started_and_says_when_it_drains(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = Sidecar(file.write())
    real, seen = NativeServer.drain, []

    async def ready() -> tuple[int, str]:
        async with aiohttp.ClientSession(file.admin_url) as client, client.get("/readyz") as answer:
            return answer.status, await answer.text()

    async def drain(server: NativeServer, grace_s: float) -> None:
        seen.append(await ready())
        await real(server, grace_s)

    monkeypatch.setattr(NativeServer, "drain", drain)
    assert sidecar.services.state == "starting"
    async with sidecar:
        assert await ready() == (200, "ready\n")
    assert seen == [(503, "draining\n")]
