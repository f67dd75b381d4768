"""The Dockerfile: what its instructions run, run here without a container engine.

Paths of the image become a folder's. `make bare-image` runs them in roots of their own, with the image's user.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml
import zmq.asyncio

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import Child, free_ports
from fairlead.tools.decisions import read_decisions
from fairlead.tools.simulate.server import running_engine
from scripts.bare_image import instructions, words
from tests.engines.kv_world import Publisher
from tests.gateway.test_tls import as_ai_gateway_does
from tests.redis.server import RedisServer
from tests.stack.conftest import engine
from tests.tracing.test_tracer import collecting
from tests.waiting import until

pytestmark = pytest.mark.stack

ROOT: Final = Path(__file__).parents[2]
BARE: Final = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
ADMIN: Final = "127.0.0.1:9003"  # the default, which the health check asks


class Image:
    """A folder in which the instructions of the build stage have been run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root
        self.steps: list[str] = []

    def build(self) -> None:
        first, second, *_ = [at for at, (keyword, _) in enumerate(instructions()) if keyword == "FROM"]
        for keyword, arguments in instructions()[first + 1 : second]:
            if keyword == "WORKDIR":
                self._folder = self._root / arguments.lstrip("/")
                self._folder.mkdir(parents=True)
            elif keyword == "COPY":
                self._copy(*arguments.split())
            elif keyword == "RUN":
                self._run(arguments)

    def command(self, *arguments: str, admin: str = ADMIN) -> list[str]:
        """A command of the image as it is here."""
        return [self._here(argument).replace(ADMIN, admin) for argument in arguments]

    def _here(self, text: str) -> str:
        return re.sub(r"/opt/(fairlead|build)\b", rf"{self._root}/opt/\1", text)

    def _copy(self, *names: str) -> None:
        *sources, target = names
        for name in sources:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*_pb2.py*")  # a fresh checkout has neither
                shutil.copytree(source, self._folder / target, ignore=ignored)
            else:
                shutil.copy(source, self._folder / target)

    def _run(self, command: str) -> None:
        """With the `python` that runs us as the base's."""
        environment = BARE | {"PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}"}
        shell = ["bash", "-ec", self._here(command)]
        done = subprocess.run(shell, cwd=self._folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        self.steps.append(command)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    built = Image(tmp_path_factory.mktemp("image"))
    built.build()
    return built


def ends(command: Sequence[str], **environment: str) -> int:
    return subprocess.run(command, env=BARE | environment, capture_output=True, check=False, timeout=60).returncode


@pytest.mark.slow
def test_what_it_holds_fits_together(image: Image) -> None:
    assert len(image.steps) == 2
    assert ends(image.command("/opt/fairlead/bin/pip", "check")) == 0


@pytest.mark.slow
async def test_a_sidecar_of_it_shares_sessions_follows_kv_events_logs_traces_and_speaks_tls(
    image: Image, redis: RedisServer, tmp_path: Path
) -> None:
    grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
    healthy = image.command(*words("HEALTHCHECK"), admin=admin)
    path = tmp_path / "fairlead.yaml"
    serve = [
        argument.replace("/etc/fairlead/fairlead.yaml", str(path))
        for argument in image.command(*words("ENTRYPOINT"), *words("CMD"))
    ]
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        simulated, collector = await enter(running_engine(engine())), await enter(collecting())
        context = zmq.asyncio.Context()
        stack.callback(context.destroy, linger=0)
        publisher = Publisher(context, "arrays")
        endpoint = {"address": simulated.address, "model": "small", "kv_events": {"events": publisher.source.events}}
        document: dict[str, Any] = {
            "listen": {"grpc": grpc, "admin": admin, "tls": {"self_signed": True}},
            "gateway": {"listen": listen, "processor_timeout_ms": 10_000},
            "pool": {"endpoints": [endpoint]},
            "sessions": {"store": redis.url},
            "decisions": {"path": "decisions"},
            "tracing": {"endpoint": collector.url.removesuffix("/v1/traces"), "sample": 1.0},
        }
        path.write_text(yaml.safe_dump(document))
        assert ends(healthy) == 1, "nobody listens yet"
        async with Child("sidecar", serve, environment={"PYTHONPATH": ""}, stop_within_s=60.0) as sidecar:
            await sidecar.until_ready(f"http://{admin}/readyz", within_s=60.0)
            assert ends(healthy) == 0
            assert ends(healthy, http_proxy="http://127.0.0.1:1") == 0, "a proxy for what leaves the machine"
            tree = as_ai_gateway_does(bootstrap(load(path), admin_address=envoy_admin))
            await enter(EnvoyProcess(tree, ready_within_s=60.0))
            client = await enter(aiohttp.ClientSession())

            async def advised() -> bool:
                body = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
                chat = f"http://{listen}/v1/chat/completions"
                async with client.post(chat, json=body, headers={"x-session-id": "s"}) as answer:
                    return answer.status == 200 and "x-fairlead-endpoint" in answer.headers

            async def shared() -> bool:
                return redis.ask("DBSIZE").strip() != ":0"

            await until(advised, "Envoy asks the sidecar over TLS")
            await asyncio.wait_for(publisher.subscribed(), 60.0)
            await until(shared, "the session is in Redis")
            await until(collector.came.is_set, "the collector has spans")
        assert ends(healthy) == 1, "it has ended"
    assert {span.name for span in collector.spans} >= {"fairlead.request", "fairlead.decide"}
    assert set(read_decisions(tmp_path / "decisions")["endpoint"]) == {simulated.address}


def test_it_has_every_extra_that_the_code_that_serves_can_ask_for() -> None:
    asked = set()
    for file in (ROOT / "src/fairlead").rglob("*.py"):
        if "tools" not in file.parts:
            asked |= set(re.findall(r"how_to_install\('([a-z-]+)'\)", file.read_text()))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (served,) = extras["serve"]
    assert set(served.partition("[")[2].rstrip("]").split(",")) == asked - {"envoy"}, "Envoy has an image of its own"


def test_it_fetches_nothing_without_a_hash() -> None:
    """tests/test_locks.py sees that the locks have hashes for everything."""
    steps = [step for keyword, arguments in instructions() if keyword == "RUN" for step in arguments.split("&&")]
    fetching = [shlex.split(step) for step in steps if re.search(r"/pip (install|wheel) ", step)]
    assert len(fetching) == 4
    for step in fetching:
        if "--no-index" not in step:
            assert "--require-hashes" in step
            assert step[step.index("-r") + 1] in ("requirements.lock", "requirements-build.lock")


def test_both_of_its_stages_stand_on_one_base_that_can_be_pinned() -> None:
    bases = [arguments.split()[0] for keyword, arguments in instructions() if keyword == "FROM"]
    assert bases == ["${BASE}", "${BASE}"]
    assert instructions()[0][0] == "ARG"
    assert instructions()[0][1].startswith("BASE=python:3.11-")


def test_compose_and_the_image_ask_for_health_alike() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    for name in ("sidecar-1", "sidecar-2"):
        assert services[name]["healthcheck"]["test"] == ["CMD", *words("HEALTHCHECK")]
