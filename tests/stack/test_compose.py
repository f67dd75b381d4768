"""deploy/compose: each service's command as it stands there, run here without a container engine.

Names of services become loopback addresses with free ports, mounted files and volumes a folder's. Grafana is in no
package index: only the files that it is started with are looked at.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tomllib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from fairlead.gateway.process import envoy_binary
from fairlead.processes import Child, free_ports, python_module
from tests.waiting import until

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy/compose"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
pytestmark = pytest.mark.stack
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
LISTENS: Final = {
    "engine-1": [8000],
    "engine-2": [8000],
    "redis": [6379],
    "sidecar-1": [9002, 9003],
    "sidecar-2": [9002, 9003],
    "envoy": [8080],
    "prometheus": [9090],
    "grafana": [3000],
}
_NAME_THEIR_PROGRAM: Final = ("envoy", "redis")  # first in the command
CHECKED: Final = [service for service, settings in SERVICES.items() if "healthcheck" in settings]


class Machine:
    """Stands for the containers: where each service's ports and files are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = [(service, port) for service, ports in LISTENS.items() for port in ports]
        *ports, self._envoy_admin = free_ports(len(names) + 1)
        self._addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}

    def address(self, service: str) -> str:
        """Of its last port, the one for people."""
        return self._addresses[service, LISTENS[service][-1]]

    def child(self, service: str, program: Sequence[str], *more: str) -> Child:
        command = self._command(service)
        if service in _NAME_THEIR_PROGRAM:
            command = command[1:]
        return Child(service, [*program, *command, *more], stop_within_s=60.0)

    async def is_healthy(self, service: str) -> bool:
        """Whether its health check ends with 0, with this machine's programs and addresses."""
        _, program, *arguments = SERVICES[service]["healthcheck"]["test"]
        if service == "redis":
            arguments = ["-p", self.address("redis").rpartition(":")[2], *arguments]
        command = [sys.executable] if program.endswith("python") else _program(program)
        command += [self._reached(argument, service) for argument in arguments]
        output = asyncio.subprocess.DEVNULL
        return await (await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)).wait() == 0

    def _command(self, service: str) -> list[str]:
        """Its arguments, with addresses and paths of this machine."""
        mounts = dict(_mounts(service))
        paths = "|".join(re.escape(inside) for inside in sorted(mounts, key=len, reverse=True)) or "(?!)"
        return [
            re.sub(
                paths, lambda found: str(self._file(service, found[0], mounts[found[0]])), self._reached(text, service)
            )
            for text in SERVICES[service]["command"]
        ]

    def mounted(self, service: str) -> None:
        """Make the files that no argument names."""
        for inside, outside in _mounts(service):
            self._file(service, inside, outside)

    def _reached(self, text: str, service: str) -> str:
        for (name, port), address in self._addresses.items():
            text = text.replace(f"{name}:{port}", address)
            if name == service or name == "envoy":
                text = re.sub(rf"(0\.0\.0\.0|127\.0\.0\.1):{port}\b", address, text)
        return re.sub(r"127\.0\.0\.1([:/])9901", rf"127.0.0.1\g<1>{self._envoy_admin}", text)

    def _file(self, service: str, inside: str, outside: str) -> Path:
        is_volume = not outside.startswith(".")
        target = self._folder / (outside if is_volume else f"{service}/{Path(inside).name}")
        target.parent.mkdir(exist_ok=True)
        if is_volume:
            target.mkdir(exist_ok=True)
        elif (FOLDER / outside).is_dir():
            shutil.copytree(FOLDER / outside, target, dirs_exist_ok=True)
        else:
            target.write_text(self._reached((FOLDER / outside).read_text(), service))
        return target


def _mounts(service: str) -> list[tuple[str, str]]:
    """Paths in the container, and what is mounted there: a path from here, or the name of a volume."""
    pairs = [volume.split(":") for volume in SERVICES[service].get("volumes", ())]
    return [(inside, outside) for outside, inside, *_ in pairs]


def _program(name: str) -> list[str]:
    path = shutil.which(name)
    assert path is not None, f"{name} is missing: run .ci/install-system-parts"
    return [path]


@pytest.mark.slow
async def test_a_request_goes_its_way_sessions_are_shared_and_prometheus_sees_both_sidecars(tmp_path: Path) -> None:
    machine, fairlead = Machine(tmp_path), python_module("fairlead")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiohttp.ClientSession())
        start = stack.enter_async_context

        prometheus = f"http://{machine.address('prometheus')}/api/v1"

        async def sees(query: str, value: str) -> bool:
            try:
                async with client.get(f"{prometheus}/query", params={"query": query}) as answer:
                    found = (await answer.json())["data"]["result"]
            except (aiohttp.ClientError, KeyError):
                return False
            return [sample["value"][1] for sample in found] == [value]

        for service in CHECKED:
            assert not await machine.is_healthy(service), f"{service} has not started"
        port = machine.address("redis").rpartition(":")[2]
        await start(machine.child("redis", _program("redis-server"), "--port", port, "--dir", str(tmp_path)))
        for service in ("engine-1", "engine-2", "sidecar-1", "sidecar-2"):
            await start(machine.child(service, fairlead))
        machine.mounted("prometheus")
        await start(machine.child("prometheus", _program("prometheus")))
        assert await (await start(machine.child("bootstrap", fairlead))).wait() == 0
        await start(machine.child("envoy", [str(envoy_binary())], "--disable-hot-restart"))
        chat = f"http://{machine.address('envoy')}/v1/chat/completions"

        async def routed() -> bool:
            body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            try:
                async with client.post(chat, json=body, headers={"x-session-id": "s"}) as answer:
                    return answer.status == 200 and "x-fairlead-model" in answer.headers
            except aiohttp.ClientError:
                return False

        await until(routed, "a request is answered with advice")
        await until(lambda: sees('count(up{job="fairlead"} == 1)', "2"), "Prometheus scrapes both sidecars")
        await until(lambda: sees("sum(fairlead_store_up)", "2"), "both share Redis")
        async with client.get(f"{prometheus}/rules") as answer:
            assert "FairleadDown" in await answer.text()
        for service in CHECKED:
            await until(partial(machine.is_healthy, service), f"{service} is healthy")


def test_all_that_stays_and_can_be_run_here_has_a_health_check() -> None:
    assert set(SERVICES) - set(CHECKED) == {"bootstrap", "grafana"}


def test_what_is_published_is_for_this_machine_alone_and_listened_on() -> None:
    for service, settings in SERVICES.items():
        for published in settings.get("ports", ()):
            host, _, inner = published.split(":")
            assert host == "127.0.0.1", f"{service} publishes {published} to everybody"
            assert int(inner) in LISTENS[service]


def test_every_mount_is_there_and_every_volume_declared() -> None:
    for service in SERVICES:
        for _, outside in _mounts(service):
            assert (FOLDER / outside).exists() if outside.startswith(".") else outside in COMPOSE["volumes"]


def test_grafana_finds_the_dashboards_and_asks_this_prometheus() -> None:
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards.yaml").read_text())["providers"]
    inside = dict(_mounts("grafana"))
    assert sorted((FOLDER / inside[provider["options"]["path"]]).glob("*.json")) != []
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


def test_the_image_is_that_of_this_version_and_those_of_others_the_chart_s() -> None:
    values = yaml.safe_load((ROOT / "deploy/kubernetes/fairlead/values.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert SERVICES["sidecar-1"]["image"] == f"fairlead:{version}"
    assert SERVICES["envoy"]["image"] == values["envoy"]["image"]
    assert SERVICES["redis"]["image"] == values["redis"]["image"]
