"""The lab's virtual environments: an engine for CPUs with pinned versions, built once and kept outside the repository.

Each is found by the hash of its lock file, so a different version of the lab never uses an old environment. They are
not one, and not the project's own: each engine pins other versions of libraries that the others use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from fairlead.errors import UserError

_HERE: Final = Path(__file__).parent
_TORCH: Final = "torch==2.13.0"  # installed separately: registry and pip choose the build that fits
_LAST_LINES: Final = 15
_BYTES_NEEDED: Final = 6 << 30

Say = Callable[[str], None]


class Contents(NamedTuple):
    """What an environment holds."""

    title: str
    name: str  # of its folder, before the hash
    lock: Path
    beside_torch: tuple[str, ...]  # what a build of torch for GPUs brings, and one for CPUs does not
    loads: tuple[str, ...]  # arguments of Python that load the engine once
    needs: str  # what to check where it does not load


VLLM: Final = Contents(
    title="vLLM",
    name="lab",
    lock=_HERE / "requirements.lock",
    beside_torch=(),
    loads=("-c", "from vllm.platforms import current_platform as p; assert p.is_cpu()"),
    needs="vLLM needs an x86-64 CPU with AVX2 or AVX-512, and libnuma (on Debian: apt-get install libnuma1).",
)
SGLANG_SERVER: Final = _HERE / "sglang_cpu" / "serve.py"
SGLANG: Final = Contents(
    title="SGLang",
    name="lab-sglang",
    lock=_HERE / "requirements-sglang.lock",
    beside_torch=("triton==3.7.1",),
    loads=(str(SGLANG_SERVER), "--help"),
    needs="SGLang needs an x86-64 CPU and a glibc of 2.34 or newer (Debian 12 has it).",
)


def build(contents: Contents = VLLM, say: Say = print) -> Path:
    """The folder of the environment; builds it if it is not there. Raises UserError that names the step that failed."""
    environment = folder(contents)
    environment.parent.mkdir(parents=True, exist_ok=True)
    with (environment.parent / f"{environment.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two concurrent commands build it once
        if not (environment / "complete").exists():
            _build(contents, environment, say)
    return environment


def python(environment: Path) -> str:
    return str(environment / "bin" / "python")


def folder(contents: Contents = VLLM) -> Path:
    """The environment's folder for this version of the lab, built or not."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{_TORCH} {sys.version_info.major}.{sys.version_info.minor}".encode()
    return (
        caches / "fairlead" / f"{contents.name}-{hashlib.sha256(version + contents.lock.read_bytes()).hexdigest()[:12]}"
    )


class _Step(NamedTuple):
    what: str
    command: list[str]
    advice: str


def _steps(contents: Contents, environment: Path) -> list[_Step]:
    pip = [python(environment), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lock = str(contents.lock)
    title = contents.title
    again = "Make sure that pip reaches a package registry, then run the same command again."
    venv = "Install Python's venv module (on Debian: apt-get install python3-venv)."
    return [
        _Step("make a virtual environment", [sys.executable, "-m", "venv", str(environment)], venv),
        _Step(f"install {_TORCH}", [*pip, _TORCH, "--constraint", lock], again),
        _Step(
            f"install {title} and what it needs",
            [*pip, "--no-deps", *contents.beside_torch, "--requirement", lock],
            again,
        ),
        _Step(f"load {title} once", [python(environment), *contents.loads], contents.needs),
    ]


def _build(contents: Contents, environment: Path, say: Say) -> None:
    shutil.rmtree(environment, ignore_errors=True)  # an incomplete one, from a build that was stopped
    free = shutil.disk_usage(environment.parent).free
    if free < _BYTES_NEEDED:
        raise UserError(
            f"the lab needs 6 GB under {environment.parent}, which has {free / 1e9:.1f} GB; make room there"
        )
    say(f"Building the lab's environment for {contents.title} in {environment}, once; some minutes.")
    begun_s = time.monotonic()
    steps = _steps(contents, environment)
    for number, step in enumerate(steps, start=1):
        started_s = time.monotonic()
        done = subprocess.run(
            step.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode != 0:
            last = "\n".join(done.stdout.decode(errors="replace").splitlines()[-_LAST_LINES:])
            raise UserError(f"the lab cannot be built: step {number}, {step.what}, failed:\n{last}\n{step.advice}")
        say(f"  {number} of {len(steps)}: {step.what}: {time.monotonic() - started_s:.0f} s")
    (environment / "complete").write_text(f"{time.monotonic() - begun_s:.0f} s\n", encoding="utf-8")
