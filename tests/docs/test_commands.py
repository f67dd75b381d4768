"""The commands of README.md and of the pages that start something, run as they stand there.

Each page runs in one shell, in a checkout, after `pip install` has run once in an empty environment. Only addresses are
replaced, by those of simulated engines and by free ports. A block whose last line says `# Ctrl-C ends it` goes on
while the next ones run. A block that begins with `# needs ...` is not run: it needs a GPU, a cluster or a registry.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from fairlead.extproc.client_keys import ClientKeys
from fairlead.processes import Child, free_ports
from fairlead.tools.simulate.server import EngineOptions, running_engine

ROOT = Path(__file__).parents[2]
PAGES: Final = (
    "README.md",
    "docs/upgrade.md",
    "docs/clients.md",
    "docs/sharing.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("start-*.md"))),
)
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND: Final = re.compile(
    r"^(\$ |fairlead |make |pip |curl |envoy |helm |kubectl |docker |python3? -m )", re.MULTILINE
)
_NEEDS: Final = ("# needs a GPU", "# needs a cluster", "# needs a container engine and a registry")
_LASTS: Final = "Ctrl-C ends it"
_SHELL: Final = """
set -eum
trap 'for job in $(jobs -p); do kill -INT -- "-$job" || true; done; wait' EXIT
curl() { command curl -sS --fail --retry 300 --retry-delay 1 --retry-max-time 300 --retry-all-errors "$@"; }
pip() { echo "already installed: $*"; }
fairlead() {
  case $1 in
    up) command fairlead "$@" --listen "$LISTEN" --grpc "$GRPC" --admin "$ADMIN" --envoy-admin "$ENVOY_ADMIN" ;;
    envoy) command fairlead "$@" --admin "$ENVOY_ADMIN" ;;
    *) command fairlead "$@" ;;
  esac
}
"""
ENGINES: Final = {"10.0.0.1:8000": "small", "10.0.0.2:8000": "small"}
Blocks = Sequence[str]


def blocks(page: str, language: str = "sh") -> list[str]:
    return [text for name, text in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if name == language]


def runnable(page: str) -> list[str]:
    return [block for block in blocks(page) if not block.startswith(_NEEDS)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user would have: a checkout's files, and an environment that the install block of the pages has made."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("src", "protos"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    (install,) = {runnable(page)[0] for page in PAGES if page.startswith("docs/start-") and runnable(page)}
    done = subprocess.run(
        ["bash", "-euc", install], cwd=folder, env=bare(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def bare() -> dict[str, str]:
    """A new user's environment: no virtual one, and the `python3` that ours was made with."""
    path = f"{sys.base_prefix}/bin:{os.environ['PATH']}"
    return {"PATH": path, "HOME": os.environ["HOME"]} | {k: v for k, v in os.environ.items() if k.startswith("PIP_")}


async def run(script: Blocks, checkout: Path, models: Mapping[str, str] = ENGINES) -> str:
    """What these blocks print, with a simulated engine at each address of `models`."""
    grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
    places = {"127.0.0.1:8080": listen, "127.0.0.1:9002": grpc, "127.0.0.1:9003": admin}
    async with AsyncExitStack() as stack:
        for address, model in models.items():
            options = EngineOptions(model=model, time_scale=50.0, kind="sglang" if ":30000" in address else "vllm")
            places[address] = (await stack.enter_async_context(running_engine(options))).address
        text = _SHELL + "".join(f"{{\n{block}}} &\n" if lasts(block) else block for block in script)
        for written, real in places.items():
            text = text.replace(written, real)
        environment = {
            "PATH": f"{checkout / '.venv/bin'}:{os.environ['PATH']}",
            "PYTHONPATH": "",
            **{"LISTEN": listen, "GRPC": grpc, "ADMIN": admin, "ENVOY_ADMIN": envoy_admin},
        }
        command = ["bash", "-c", f"cd {checkout}\n{text}"]
        shell = Child("shell", command, environment=environment, has_output=True, stop_within_s=60.0)
        return (await (await stack.enter_async_context(shell)).output()).decode()


def lasts(block: str) -> bool:
    return _LASTS in block.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "port"), [("docs/start-vllm.md", 8000), ("docs/start-sglang.md", 30000)])
async def test_the_start_in_front_of_engines_ends_with_a_routed_answer(page: str, port: int, checkout: Path) -> None:
    _, doctor, up, ask = runnable(page)
    printed = await run([doctor, up, ask], checkout, {f"10.0.0.1:{port}": "small", f"10.0.0.2:{port}": "small"})
    assert printed.count("gives     server         small") == 2
    assert "x-fairlead-model: small" in printed
    assert '"choices"' in printed


@pytest.mark.slow
async def test_the_start_with_an_envoy_of_ones_own_ends_with_a_routed_answer(checkout: Path) -> None:
    _, *rest = runnable("docs/start-envoy.md")
    printed = await run(rest, checkout, {"10.0.0.1:8000": "small", "10.0.0.2:8000": "large"})
    assert "2 endpoints of 2 models (small, large); routes: auto" in printed
    assert re.search("x-fairlead-model: (small|large)", printed)
    assert '"choices"' in printed


def test_readme_names_targets_of_make() -> None:
    make, *_ = runnable("README.md")
    targets = re.findall(r"^make (\w+)", make, re.MULTILINE)
    assert targets == ["demo", "test"]
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True)


@pytest.mark.slow
async def test_readme_in_front_of_a_pool_ends_with_a_routed_answer(checkout: Path) -> None:
    _, install, up, ask = runnable("README.md")
    assert install == runnable("docs/start-envoy.md")[0]  # which made the checkout's environment
    printed = await run([up, ask], checkout)
    assert '"owned_by":"fairlead"' in printed
    assert "x-fairlead-model: small" in printed
    assert re.search("x-fairlead-endpoint: 127.0.0.1:[0-9]+", printed)
    assert '"choices"' in printed


@pytest.mark.slow
async def test_the_upgrade_page_checks_a_configuration(checkout: Path) -> None:
    (check,) = runnable("docs/upgrade.md")
    write = "echo 'pool: {endpoints: [{address: \"10.0.0.1:8000\", model: m}]}' > fairlead.yaml\n"
    assert "1 endpoints of 1 models (m)" in await run([write, check], checkout)


def test_a_client_s_key_made_as_the_page_says_opens(tmp_path: Path) -> None:
    (make,) = runnable("docs/clients.md")
    printed = subprocess.run(["bash", "-euc", make], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    keys = ClientKeys()
    keys.use(tmp_path / "clients")
    assert keys.allow({b"x-api-key": printed.split()[-1].encode()})


@pytest.mark.parametrize("page", PAGES)
def test_commands_stand_in_blocks_of_shell_that_parse(page: str) -> None:
    for text in blocks(page, ""):
        assert not _COMMAND.search(text), f"{page}: a block with commands is marked sh, so that it is run:\n{text}"
    for block in blocks(page):
        subprocess.run(["bash", "-n", "-c", block], check=True)


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_here_says_why_and_names_files_that_exist(page: str) -> None:
    left = [block for block in blocks(page) if block.startswith("# needs")]
    assert all(block.startswith(_NEEDS) for block in left)
    for path in re.findall(r"\bdeploy/[\w./-]+", "".join(left)):
        assert (ROOT / path).exists(), path


def test_flags_of_engines_are_those_that_the_lab_starts_real_ones_with_or_doctor_advises() -> None:
    """The pages' engines need a GPU; `tests/lab` starts the same servers on a CPU, and `doctor` was seen on them."""
    known = "".join(
        file.read_text() for file in (*(ROOT / "lab").glob("*.py"), *(ROOT / "src/fairlead").glob("*/*.py"))
    )
    for page in PAGES:
        for block in blocks(page):
            if block.startswith("# needs a GPU"):
                assert [flag for flag in re.findall(r"--[a-z][a-z-]+", block) if flag not in known] == []
