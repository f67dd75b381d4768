"""Each benchmark says what it measures and how it is called, and does not begin to measure meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted(path for path in (ROOT / "benchmarks").glob("**/*.py") if not path.name.startswith("_"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_has_help(path: Path) -> None:
    module = f"benchmarks.{path.stem}"
    command = ["-m", module] if f"python -m {module}" in path.read_text(encoding="utf-8") else [str(path)]
    done = subprocess.run(
        [sys.executable, *command, "--help"], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout[:6]) == (0, "usage:"), done.stderr
