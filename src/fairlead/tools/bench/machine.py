"""Where and when a benchmark ran: numbers mean nothing without it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import msgspec

from fairlead.errors import UserError
from fairlead.gateway import envoy_binary
from fairlead.tools.origin import commit, date


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
        date=date(),
        commit=commit(),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        envoy=_envoy(),
        load_average=os.getloadavg()[0],
    )


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


def machine_facts(command: str, seed: int, machine: Machine, load_average_after: float) -> str:
    """How, when and where it ran, as a list."""
    facts = (
        ("Command", f"`{command}`"),
        ("Seed", seed),
        ("Date", machine.date),
        ("Commit", machine.commit),
        ("Machine", f"{machine.cpu}, {machine.cores} cores, {machine.kernel}"),
        ("Software", f"Python {machine.python}, Envoy {machine.envoy}"),
        ("Load average before and after", f"{machine.load_average:.2f}, {load_average_after:.2f}"),
    )
    return "\n".join(f"- {name}: {value}" for name, value in facts)
