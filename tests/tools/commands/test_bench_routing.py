"""`fairlead bench-routing`, run as a user runs it: real Envoy, sidecar and engines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def bench_routing(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead", "bench-routing", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.stack
@pytest.mark.slow
def test_a_quick_run_compares_policies_and_writes_what_it_prints(tmp_path: Path) -> None:
    done = bench_routing("--quick", "--against", "round_robin", "--seed", "3", "--out", str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (tmp_path / "routing.md").read_text().strip()
    assert (tmp_path / "routing.png").stat().st_size > 10_000
    runs = json.loads((tmp_path / "routing.json").read_text())["outcomes"]
    assert [run["policy"] for run in runs] == ["fairlead", "round_robin", "round_robin", "fairlead"]
    by_policy = {policy: [run for run in runs if run["policy"] == policy] for policy in ("fairlead", "round_robin")}
    for ours, theirs in zip(*(sorted(rs, key=lambda r: r["repeat"]) for rs in by_policy.values()), strict=True):
        assert ours["requests"] == theirs["requests"]
        assert ours["cached_share"] > theirs["cached_share"]


@pytest.mark.parametrize(
    ("against", "told"),
    [("lmetrik", 'did you mean "lmetric"?'), ("fairlead", "each once"), ("laar,laar", "each once"), ("", "each once")],
)
def test_policies_that_cannot_be_compared_are_wrong_use(against: str, told: str, tmp_path: Path) -> None:
    done = bench_routing("--against", against, "--out", str(tmp_path))

    assert done.returncode == 2
    assert told in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_help_shows_an_example() -> None:
    assert "Example: fairlead bench-routing" in bench_routing("--help").stdout
