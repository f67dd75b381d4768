"""`fairlead replay` as a user runs it: its report, its mistakes, and processes that change nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from fairlead.tools.replay.policy_spec import read_policy_spec
from fairlead.tools.replay.run import ReplayPlan, Traffic, run
from tests.command import fairlead
from tests.tools.replay.world import small_world


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    rows = [
        {"at_s": 0.05 * n, "session": str(n % 7), "prompt_tokens": 300 + 40 * n, "output_tokens": 5 + n % 20}
        for n in range(120)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_report_is_written_whole_and_says_how_it_was_made(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = fairlead(
        "replay",
        trace,
        "--policies",
        "fairlead,ear,random",
        "--seeds",
        "2",
        "--load",
        "0.5",
        "--reference",
        "least_request,ear",
        "--jobs",
        "2",
        "--out",
        out,
    )
    assert ran.returncode == 0, ran.stderr
    written = sorted(path.name for path in out.iterdir())
    assert written == ["report.html", "report.md", "requests.parquet", "summary.json", "talks.png"]
    report = (out / "report.md").read_text()
    assert "--policies fairlead,ear,random" in report
    assert re.search("0.5 of what `(least_request|ear)` can serve, .* others can: `(least_request|ear)`", report)
    assert "capacity, talks" in ran.stderr
    assert "| `random` |" in report
    page = (out / "report.html").read_text()
    assert 'src="data:image/png;base64,' in page
    assert page.count("<table>") == 3
    rows = pl.read_parquet(out / "requests.parquet")
    assert rows.height == 120 * 3 * 2
    assert set(rows["policy"]) == {"fairlead", "ear", "random"}


def test_processes_change_nothing(trace: Path) -> None:
    plan = ReplayPlan(
        (Traffic(str(trace)),), (read_policy_spec("fairlead"), read_policy_spec("random")), (0, 1), small_world()
    )
    assert run(plan, jobs=1) == run(plan, jobs=3)


def test_all_policies_of_a_seed_have_the_same_arrivals(trace: Path, tmp_path: Path) -> None:
    plan = ReplayPlan(
        (Traffic(str(trace), faster=3.0),), (read_policy_spec("ear"), read_policy_spec("random")), (4,), small_world()
    )
    run(plan, jobs=1, folder=tmp_path)
    one, other = (pl.read_parquet(path)["sent_ms"].sort() for path in sorted(tmp_path.glob("*.parquet")))
    assert one.equals(other)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--policies", "gogo"], 'did you mean "gorgo"'),
        (["--policies", "ear,ear"], "write each policy once"),
        (["--load", "0.5", "--faster", "2"], "--load and --faster both set the rate"),
        (["--draws", "3"], "give --zipf too"),
        (["--from-s", "1000"], "nothing starts from 1000 s"),
        (["--world", "no-world.yaml"], "no such file, and no world of that name; known names: plain, quadratic"),
        (["--out", "/proc/here"], "--out /proc/here: cannot be written"),
    ],
)
def test_a_mistake_ends_2_with_one_sentence(trace: Path, arguments: list[str], why: str) -> None:
    ran = fairlead("replay", trace, "--jobs", "1", *arguments)
    assert ran.returncode == 2
    assert why in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_run_that_fails_leaves_the_report_that_was_there(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.md").write_text("before")
    world = tmp_path / "world.yaml"
    world.write_text("pool: [{engine: {kv_tokens: 100}}]")
    ran = fairlead("replay", trace, "--world", world, "--out", out, "--seeds", "1")
    assert ran.returncode == 2
    assert "no engine of this world can take any of its prompts" in ran.stderr
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("report.md", "before")]


@pytest.mark.slow
def test_calibrate_writes_engines_that_a_world_can_name(trace: Path, tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    lines = ["model,prompt_size,token_size,batch_size,prompt_time,token_time,e2e_time"]
    for prompt, batch in ((100, 1), (200, 1), (400, 1), (400, 4), (400, 8)):
        first_ms, token_ms = 5 + 0.1 * prompt * batch, 10 + 0.5 * batch
        lines.append(f"mine,{prompt},11,{batch},{first_ms},{token_ms},{first_ms + 10 * token_ms}")
    table.write_text("\n".join(lines) + "\n")
    engines, world = tmp_path / "engines.json", tmp_path / "world.yaml"
    assert fairlead("calibrate", table, "--out", engines).returncode == 0
    world.write_text("pool: [{count: 2, engine: mine}]\ncalibration: engines.json")
    ran = fairlead("replay", trace, "--world", world, "--out", tmp_path / "out", "--seeds", "1")
    assert ran.returncode == 0, ran.stderr
