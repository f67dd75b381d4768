"""The lab's virtual environment: vLLM for CPUs with pinned versions, built once and kept outside the repository.

It is found by the hash of its lock file, so another version of the lab never runs in an old one. The project's own
environment cannot hold it: vLLM pins other versions of libraries that Fairlead uses.
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
_LOCK: Final = _HERE / "requirements.lock"
_TORCH: Final = "torch==2.13.0"  # on its own: which build of it fits is the registry's and pip's business
_LAST_LINES: Final = 15
_BYTES_NEEDED: Final = 6 << 30

Say = Callable[[str], None]


def build(say: Say = print) -> Path:
    """The folder of the environment; builds it if it is not there. Raises UserError that names the step that failed."""
    environment = folder()
    environment.parent.mkdir(parents=True, exist_ok=True)
    with (environment.parent / f"{environment.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that start together build it once
        if not (environment / "complete").exists():
            _build(environment, say)
    return environment


def python(environment: Path) -> str:
    return str(environment / "bin" / "python")


def folder() -> Path:
    """Where this version of the lab has its environment, built or not."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{_TORCH} {sys.version_info.major}.{sys.version_info.minor}".encode()
    return caches / "fairlead" / f"lab-{hashlib.sha256(version + _LOCK.read_bytes()).hexdigest()[:12]}"


class _Step(NamedTuple):
    what: str
    command: list[str]
    advice: str


def _steps(environment: Path) -> list[_Step]:
    pip = [python(environment), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    loads = [python(environment), "-c", "from vllm.platforms import current_platform as p; assert p.is_cpu()"]
    again = "See that pip reaches a package registry, then run the same command again."
    needs = "vLLM needs an x86-64 CPU with AVX2 or AVX-512, and libnuma (on Debian: apt-get install libnuma1)."
    venv = "Install Python's venv module (on Debian: apt-get install python3-venv)."
    return [
        _Step("make a virtual environment", [sys.executable, "-m", "venv", str(environment)], venv),
        _Step(f"install {_TORCH}", [*pip, _TORCH, "--constraint", str(_LOCK)], again),
        _Step("install vLLM and what it needs", [*pip, "--no-deps", "--requirement", str(_LOCK)], again),
        _Step("load vLLM once", loads, needs),
    ]


def _build(environment: Path, say: Say) -> None:
    shutil.rmtree(environment, ignore_errors=True)  # half of one, from a build that was stopped
    free = shutil.disk_usage(environment.parent).free
    if free < _BYTES_NEEDED:
        raise UserError(
            f"the lab needs 6 GB under {environment.parent}, which has {free / 1e9:.1f} GB; make room there"
        )
    say(f"Building the lab's environment in {environment}, once; some minutes.")
    begun_s = time.monotonic()
    steps = _steps(environment)
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
