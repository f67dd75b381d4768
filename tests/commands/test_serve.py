"""`serve`, `check` and `up` as their users run them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import yaml

from fairlead.processes import free_ports
from fairlead.tools.simulate.server import running_engine
from tests.stack.conftest import engine

pytestmark = pytest.mark.stack

FAIRLEAD = (sys.executable, "-m", "fairlead")
CONFIG = "pool: {endpoints: [{address: '127.0.0.1:8000', model: m}]}\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FAIRLEAD, *arguments], capture_output=True, text=True, check=False)


def test_check_says_what_would_be_served(tmp_path: Path) -> None:
    path = tmp_path / "fairlead.yaml"
    path.write_text(CONFIG)
    done = run("check", "--config", str(path))
    assert (done.returncode, "1 endpoints of 1 models (m)" in done.stdout) == (0, True)


def test_check_ends_with_two_and_one_sentence_for_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "fairlead.yaml"
    path.write_text(CONFIG + "nonsense: 1\n")
    done = run("check", "--config", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"fairlead: {path}:2: nonsense: unknown key. Known keys: listen, gateway, pool, ")
    assert done.stderr.count("\n") == 1


def test_a_capability_file_without_the_model_is_a_mistake_that_check_finds(tmp_path: Path) -> None:
    path = tmp_path / "fairlead.yaml"
    path.write_text(
        "pool: {endpoints: [{address: '127.0.0.1:8000', model: m}], models: {m: {capability: none.json}}}\n"
    )
    done = run("check", "--config", str(path))
    assert done.returncode == 2
    assert "pool.models.m.capability" in done.stderr


def test_serve_ends_with_two_when_its_address_is_taken(tmp_path: Path) -> None:
    grpc, admin = free_ports(2)
    path = tmp_path / "fairlead.yaml"
    path.write_text(CONFIG + f"listen: {{grpc: '127.0.0.1:{grpc}', admin: '127.0.0.1:{admin}'}}\n")
    with subprocess.Popen([*FAIRLEAD, "serve", "--config", str(path)], stderr=subprocess.PIPE, text=True) as first:
        try:
            assert first.stderr is not None
            assert "serving" in first.stderr.readline()
            second = run("serve", "--config", str(path))
        finally:
            first.send_signal(signal.SIGTERM)
            assert first.wait() == 0
    assert second.returncode == 2
    assert f"listen.admin: 127.0.0.1:{admin} cannot be used" in second.stderr
    assert "Unclosed" not in second.stderr


def test_every_command_has_help_with_an_example() -> None:
    listed = run("--help").stdout
    for command in ("up", "serve", "check", "envoy", "doctor", "engine", "demo", "fit", "bench"):
        assert command in listed
        assert "Example: fairlead " in run(command, "--help").stdout, command


async def test_up_serves_engines_that_already_run_until_ctrl_c(tmp_path: Path) -> None:
    listen, grpc, admin, envoy = (f"127.0.0.1:{port}" for port in free_ports(4))
    events = {"kv_events": {"publisher": "zmq", "endpoint_port_base": 5557, "topic": "kv"}}
    large = replace(engine("large", kind="sglang"), info=events)
    half = replace(engine("large", kind="sglang"), info={"disaggregation_mode": "prefill"})
    async with running_engine(engine("small")) as one, running_engine(large) as two, running_engine(half) as three:
        urls = [f"http://{each.address}" for each in (one, two, three)]
        arguments = [*urls, "--config", str(tmp_path / "up.yaml")]
        addresses = ["--listen", listen, "--grpc", grpc, "--admin", admin, "--envoy-admin", envoy]
        process = await asyncio.create_subprocess_exec(
            *(*FAIRLEAD, "up", *arguments, *addresses),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        printed = b""
        while b"Ctrl-C" not in printed:
            line = await process.stdout.readline()
            assert line, printed
            printed += line
        body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        url = f"http://{listen}/v1/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            status, document = response.status, await response.json()
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does it
        assert await process.wait() == 0
    assert status == 200
    assert document["model"] in ("small", "large")
    lines = printed.decode().splitlines()
    assert lines[0] == f"page:      http://{admin}/"
    assert f"requests:  http://{listen}/v1/chat/completions" in printed.decode()
    assert all(re.match(r"[a-z]+: +\S|127|Ctrl-C", line) for line in lines), "no line of a log"
    written = yaml.safe_load((tmp_path / "up.yaml").read_text())["pool"]["endpoints"]
    kv_events = {"events": "tcp://127.0.0.1:5557", "topic": "kv"}
    assert [each["engine"] for each in written] == ["vllm", "sglang"]  # the half of a server is left out
    assert [each.get("kv_events") for each in written] == [None, kv_events]


def test_up_names_the_engine_that_does_not_answer(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    done = run("up", f"http://127.0.0.1:{port}", "--config", str(tmp_path / "up.yaml"))
    assert done.returncode == 2
    assert f"http://127.0.0.1:{port}/v1/models does not answer" in done.stderr


def test_up_says_what_an_engine_with_tls_needs() -> None:
    done = run("up", "https://127.0.0.1:1")
    assert done.returncode == 2
    assert (
        "https://127.0.0.1:1: an https engine needs more than a URL, the CA that signed its certificate" in done.stderr
    )


@pytest.mark.parametrize("url", ["http://user:hush@127.0.0.1:1", "https://user:hush@127.0.0.1:1", "user:hush@h:1/x"])
def test_up_shows_no_password_of_an_engine_and_writes_nothing(tmp_path: Path, url: str) -> None:
    path = tmp_path / "up.yaml"
    done = run("up", url, "--config", str(path))
    assert (done.returncode, path.exists()) == (2, False)
    assert "without credentials; an engine's API key goes into a file: pool.api_key_file" in done.stderr
    assert "hush" not in done.stderr + done.stdout


@pytest.mark.parametrize("option", ["--listen", "--envoy-admin"])
def test_up_reports_an_address_that_envoy_cannot_use_by_its_option_before_it_asks_engines(option: str) -> None:
    done = run("up", "http://127.0.0.1:1", option, "localhost:80")
    assert done.returncode == 2
    assert done.stderr.startswith(f'fairlead: {option}: "localhost" is a name')


async def test_up_gives_envoys_admin_page_a_port_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "up.yaml"
    async with running_engine(engine("small")) as one:
        arguments = ["--listen", "127.0.0.1:7999", "--envoy-admin", "127.0.0.1:7999", "--config", str(path)]
        done = await asyncio.to_thread(run, "up", f"http://{one.address}", *arguments)
    assert (done.returncode, path.exists()) == (2, False)
    assert '--envoy-admin: "127.0.0.1:7999" and gateway.listen "127.0.0.1:7999" are one port' in done.stderr


async def test_up_does_not_overwrite_a_configuration_of_yours(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(CONFIG)
    async with running_engine(engine("small")) as one:
        done = await asyncio.to_thread(run, "up", f"http://{one.address}", "--config", str(path))
    assert (done.returncode, "was not written by `fairlead up`; name another file" in done.stderr) == (2, True)
    assert path.read_text() == CONFIG


def test_up_takes_no_url_with_a_path() -> None:
    done = run("up", "http://127.0.0.1:1/path")
    assert (done.returncode, "without a path" in done.stderr) == (2, True)
