"""The benchmark's child processes: what they print, and what each of them has used."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fairlead.processes import Child, python_module


def child(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
    """`python -m MODULE ARGUMENTS...`, whose output we read."""
    return Child(module, python_module(module, *arguments), environment=environment, has_output=True)


async def addresses_of(listening: Child) -> list[str]:
    """The addresses that a child of ours prints when it listens."""
    return list(json.loads(await listening.line()))


def cpu_s(pid: int) -> float:
    """User and system time that the process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def members(session: int) -> list[int]:
    """The processes of a session, threads not counted: what a child has started belongs to the child's session."""
    pids = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
    return [pid for pid in pids if _session_of(pid) == session]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:  # it has ended since /proc was listed
        return None
