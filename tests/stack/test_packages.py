"""The sdist and the wheel as `make release` builds them, and the wheel where nothing else is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from fairlead.gateway import EnvoyProcess
from fairlead.processes import Child, free_ports
from fairlead.tools.simulate.server import running_engine
from tests.stack.conftest import engine
from tests.tools.plan.world import write_inputs

pytestmark = [pytest.mark.stack, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BARE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENDPOINT = {"address": "127.0.0.1:8000", "model": "m"}
SERVED: dict[str, dict[str, Any]] = {  # sections that need the extra
    "kv-events": {"pool": {"endpoints": [ENDPOINT | {"kv_events": {"events": "tcp://127.0.0.1:1"}}]}},
    "redis": {"sessions": {"store": "redis://127.0.0.1:6379/0"}},
    "tls": {"listen": {"tls": {"self_signed": True}}},
    "tracing": {"tracing": {"endpoint": "http://127.0.0.1:4318"}},
    "decisions": {"decisions": {"path": "decisions"}},
}
TOOLS = {
    "envoy": ["envoy", "--config", "fairlead.yaml", "--output", "envoy.yaml", "--validate"],
    "fit": ["fit", "attempts.csv", "--out", "models"],
    "replay": ["replay", "trace.csv", "--policies", "fairlead", "--seeds", "1", "--jobs", "1", "--out", "replay"],
    "plan": [
        "plan",
        "--settings",
        "cascade.yaml",
        "--profile",
        "profile.jsonl",
        "--min-quality",
        "50",
        "--plot",
        "p.png",
    ],
}


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, env=BARE | environment, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    """The programs of a new environment that has these packages and what they need."""
    venv.create(folder)  # pip's own installation would take as long again
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-compile", *packages)
    return folder / "bin"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that releases are made with."""
    folder = tmp_path_factory.mktemp("tools")
    return environment(folder, "-r", ROOT / "requirements-release.txt", *PROJECT["build-system"]["requires"])


@pytest.fixture(scope="module")
def built(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    assert "Nothing was published" in run(tools / "python", ROOT / "scripts/release.py", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment that has the wheel alone."""
    return environment(tmp_path_factory.mktemp("empty") / "env", next(built.glob("*.whl")))


def test_they_hold_what_they_should_and_no_more(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"fairlead", "fairlead_router"}
    assert {"fairlead/extproc/pb/ext_proc_pb2.py", "fairlead/admin/page/index.html", "fairlead/py.typed"} <= set(names)
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        tops = {name.split("/")[1] for name in sdist.getnames()}
    assert tops == {
        "src",
        "protos",
        "hatch_build.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "PKG-INFO",
        ".gitignore",
    }


def test_the_bill_of_materials_lists_what_the_image_installs(built: Path) -> None:
    bill = json.loads(next(built.glob("*.cdx.json")).read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "fairlead-router")
    locked = re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert sorted((each["name"], each["version"]) for each in bill["components"]) == sorted(locked)
    assert all(each["externalReferences"][0]["hashes"] for each in bill["components"])


def test_with_every_extra_that_serves_a_configuration_that_uses_each_is_checked(built: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "env", f"{next(built.glob('*.whl'))}[serve]")
    path = tmp_path / "fairlead.yaml"
    document = {name: section for sections in SERVED.values() for name, section in sections.items()}
    path.write_text(yaml.safe_dump(document))
    assert "1 endpoints of 1 models (m)" in run(programs / "fairlead", "check", "--config", path)


def inputs(folder: Path, extra: str) -> None:
    """What the commands of TOOLS read, and a configuration with what needs `extra`."""
    sections = {"pool": {"endpoints": [ENDPOINT]}} | SERVED.get(extra, {})
    (folder / "fairlead.yaml").write_text(yaml.safe_dump(sections))
    attempts = [f"{model},en,4K,{n % share == 0:d}" for n in range(12) for model, share in (("a", 2), ("b", 3))]
    (folder / "attempts.csv").write_text("\n".join(["model,language,bucket,correct", *attempts]))
    (folder / "trace.csv").write_text("at_s,prompt_tokens,output_tokens\n0,100,5\n1,100,5\n")
    write_inputs(folder)


@pytest.mark.parametrize("extra", [*TOOLS, *SERVED])
def test_an_extra_by_itself_gives_what_it_is_for_and_is_named_where_it_is_missing(
    extra: str, tools: Path, built: Path, installed: Path, tmp_path: Path
) -> None:
    inputs(tmp_path, extra)
    command = TOOLS.get(extra, ["check", "--config", "fairlead.yaml"])
    without = fairlead(installed, *command, cwd=tmp_path)
    assert (without.returncode, without.stderr.count("\n")) == (2, 1), without.stderr
    assert f"pip install '.[{extra}]'" in without.stderr

    python = tmp_path / "env/bin/python"
    run(tools / "uv", "venv", "--quiet", "--python", sys.executable, tmp_path / "env")  # pip would take a minute each
    run(tools / "uv", "pip", "install", "--quiet", "--python", python, f"{next(built.glob('*.whl'))}[{extra}]")
    done = fairlead(python.parent, *command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def fairlead(programs: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(programs / "fairlead"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=BARE, cwd=cwd)


def test_every_extra_is_tried() -> None:
    assert {*TOOLS, *SERVED, "serve"} == set(PROJECT["project"]["optional-dependencies"])


def test_the_sdist_builds_the_wheel_that_a_checkout_builds(tools: Path, built: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("src", "protos"):  # without what a build makes
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*_pb2.py*"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, checkout / name)
    build = (tools / "python", "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", checkout)
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        run(*build, SOURCE_DATE_EPOCH=str(int(sdist.getmembers()[0].mtime)))
    (of_sdist,), (of_checkout,) = built.glob("*.whl"), (tmp_path / "dist").iterdir()
    assert of_checkout.name == of_sdist.name
    assert of_checkout.read_bytes() == of_sdist.read_bytes()


async def test_the_wheel_alone_checks_serves_and_routes_a_request(installed: Path, tmp_path: Path) -> None:
    grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
    path, bootstrap = tmp_path / "fairlead.yaml", tmp_path / "envoy.yaml"
    async with running_engine(engine()) as simulated:
        document = {
            "listen": {"grpc": grpc, "admin": admin},
            "gateway": {"listen": listen},
            "pool": {"endpoints": [{"address": simulated.address, "model": "small"}]},
        }
        path.write_text(yaml.safe_dump(document))
        fairlead = installed / "fairlead"
        assert "1 endpoints of 1 models (small)" in run(fairlead, "check", "--config", path)
        run(fairlead, "envoy", "--config", path, "--output", bootstrap, "--admin", envoy_admin)
        command = [str(fairlead), "serve", "--config", str(path)]
        async with Child("fairlead", command, environment={"PYTHONPATH": ""}) as sidecar:
            await sidecar.until_ready(f"http://{admin}/readyz")
            async with EnvoyProcess(yaml.safe_load(bootstrap.read_text())), aiohttp.ClientSession() as client:
                body = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
                async with client.post(f"http://{listen}/v1/chat/completions", json=body) as answer:
                    assert (answer.status, answer.headers["x-fairlead-endpoint"]) == (200, simulated.address)


def test_a_missing_extra_is_one_sentence(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "fairlead.yaml"
    path.write_text(
        "pool: {endpoints: [{address: '127.0.0.1:8000', model: m}]}\ntracing: {endpoint: 'http://127.0.0.1:4318'}\n"
    )
    command = [str(installed / "fairlead"), "check", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=BARE)
    assert done.returncode == 2
    assert "opentelemetry-proto, which is not installed" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_version_is_one() -> None:
    chart = yaml.safe_load((ROOT / "deploy/kubernetes/fairlead/Chart.yaml").read_text())
    shown = subprocess.run(
        [sys.executable, "-m", "fairlead", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert shown.split()[-1] == PROJECT["project"]["version"] == chart["appVersion"].strip('"')
