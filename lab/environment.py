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
from typing import Final

from fairlead.errors import UserError

_HERE: Final = Path(__file__).parent
_LOCK: Final = _HERE / "requirements.lock"
_TORCH: Final = "torch==2.13.0"  # on its own: which build of it fits is the registry's and pip's business
_LAST_LINES: Final = 15
_BYTES_NEEDED: Final = 6 << 30

Say = Callable[[str], None]


def build(say: Say = print) -> Path:
    """The folder of the environment; builds it if it is not there. Raises UserError that names the step that failed."""
    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that start together build it once
        if not (folder / "complete").exists():
            _build(folder, say)
    return folder


def python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def _folder() -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{_TORCH} {sys.version_info.major}.{sys.version_info.minor}".encode()
    return caches / "fairlead" / f"lab-{hashlib.sha256(version + _LOCK.read_bytes()).hexdigest()[:12]}"


def _build(folder: Path, say: Say) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # half of one, from a build that was stopped
    free = shutil.disk_usage(folder.parent).free
    if free < _BYTES_NEEDED:
        raise UserError(f"the lab needs 6 GB under {folder.parent}, which has {free / 1e9:.1f} GB; make room there")
    pip = [python(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = {
        "make a virtual environment": [sys.executable, "-m", "venv", str(folder)],
        f"install {_TORCH}": [*pip, _TORCH, "--constraint", str(_LOCK)],
        "install vLLM and what it needs": [*pip, "--no-deps", "--requirement", str(_LOCK)],
        "load vLLM once": [python(folder), "-c", "import vllm.platforms as p; assert p.current_platform.is_cpu()"],
    }
    say(f"Building the lab's environment in {folder}, once; some minutes.")
    begun_s = time.monotonic()
    for number, (what, command) in enumerate(steps.items(), start=1):
        started_s = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            last = "\n".join(done.stdout.decode(errors="replace").splitlines()[-_LAST_LINES:])
            raise UserError(f"the lab cannot be built: step {number}, {what}, failed:\n{last}\n{_advice(number)}")
        say(f"  {number} of {len(steps)}: {what}: {time.monotonic() - started_s:.0f} s")
    (folder / "complete").write_text(f"{time.monotonic() - begun_s:.0f} s\n", encoding="utf-8")


def _advice(step: int) -> str:
    if step == 1:
        return "Install Python's venv module (on Debian: apt-get install python3-venv)."
    if step == len(("venv", "torch", "vllm", "load")):
        return "vLLM needs an x86-64 CPU with AVX2 or AVX-512, and libnuma (on Debian: apt-get install libnuma1)."
    return "See that pip reaches a package registry, then run the same command again."


if __name__ == "__main__":
    try:
        build()
    except UserError as error:
        sys.exit(f"error: {error}")
