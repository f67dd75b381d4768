"""Which sources a result is of."""

from __future__ import annotations

import subprocess
from pathlib import Path


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
