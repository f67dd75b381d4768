"""Where a result is from: the command, the sources and the time."""

from __future__ import annotations

import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec


class Origin(msgspec.Struct, frozen=True):
    command: str
    commit: str
    date: str


def origin() -> Origin:
    """The origin of what this command writes now."""
    return Origin(shlex.join(["fairlead", *sys.argv[1:]]), commit(), date())


def date() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def commit() -> str:
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
