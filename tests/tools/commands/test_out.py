"""A benchmark or a search takes minutes: where its results cannot be written, it says so before it begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli import COMMANDS


@pytest.mark.parametrize("command", [*(name for name in COMMANDS if name.startswith("bench")), "tune trace.jsonl"])
def test_a_folder_that_cannot_be_written_is_said_at_once(command: str, tmp_path: Path) -> None:
    out = tmp_path / "taken"
    out.write_text("a file")
    arguments = [sys.executable, "-m", "fairlead", *command.split(), "--out", str(out)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, f"fairlead: --out {out}: cannot be written (File exists)\n")
