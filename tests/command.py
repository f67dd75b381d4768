"""`fairlead` as a user runs it: a process of its own, to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def fairlead(*arguments: str | Path, folder: Path | None = None, lacks: str = "") -> subprocess.CompletedProcess[str]:
    """In `folder`, where the library that it `lacks` is not installed."""
    before = f"import sys; sys.modules[{lacks!r}] = None; " if lacks else ""
    command = [sys.executable, "-c", f"{before}from fairlead.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
