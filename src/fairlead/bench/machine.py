"""Where and when a benchmark ran: numbers mean nothing without it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fairlead.errors import UserError
from fairlead.gateway import envoy_binary


class Machine(msgspec.Struct, frozen=True):
    date: str
    commit: str
    cpu: str
    cores: int
    kernel: str
    python: str
    envoy: str
    load_average: float  # of the last minute, before the run


def this_machine() -> Machine:
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        envoy=_envoy(),
        load_average=os.getloadavg()[0],
    )


def _commit() -> str:
    """The commit of the source tree, with a mark if the sources differ from it; `unknown` for an installed package."""
    package = Path(__file__).parents[1]
    head = _git(package, "rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return f"{head} with changes" if _git(package, "status", "--porcelain", "--", ".") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _envoy() -> str:
    try:
        binary = envoy_binary()
    except UserError:
        return "not installed"
    done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"/(\d+\.\d+\.\d+)/", done.stdout)
    return found.group(1) if found else "unknown"
