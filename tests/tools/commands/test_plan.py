"""`fairlead plan` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.tools.plan.plan_file import read_plan
from tests.command import fairlead
from tests.tools.plan.world import write_inputs


@pytest.fixture
def inputs(tmp_path: Path) -> list[str | Path]:
    write_inputs(tmp_path)
    return ["--settings", tmp_path / "cascade.yaml", "--profile", tmp_path / "profile.jsonl"]


@pytest.mark.slow
def test_a_plan_is_written_explained_drawn_and_compared(inputs: list[str | Path], tmp_path: Path) -> None:
    first, second, picture = tmp_path / "first.yaml", tmp_path / "second.yaml", tmp_path / "pareto.png"
    ran = fairlead("plan", *inputs, "--min-quality", "50", "--out", first, "--plot", picture)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"wrote {first}" in ran.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert read_plan(first).quality >= 50
    explained = fairlead("plan", "explain", first)
    assert "goes on to medium-70b" in explained.stdout
    assert fairlead("plan", "diff", first, first).stdout == "no difference\n"
    assert fairlead("plan", *inputs, "--min-quality", "46", "--out", second).returncode == 0
    assert "small-7b: threshold" in fairlead("plan", "diff", first, second).stdout


def test_what_cannot_be_planned_is_one_sentence_and_leaves_nothing(inputs: list[str | Path], tmp_path: Path) -> None:
    out = tmp_path / "plan.yaml"
    cases: list[tuple[list[str | Path], str]] = [
        ([], "--min-quality 85, or --max-latency-ms"),
        (["--min-quality", "60", "--max-latency-ms", "9000"], "give one thing to plan for"),
        (["--min-quality", "99"], "is above"),
        (["--min-quality", "60", "--fixed-deployment"], "models[0].replicas"),
        (["--min-quality", "60", "--profile", tmp_path / "none.jsonl"], "`fairlead plan profile` writes it"),
    ]
    for wrong, said in cases:
        ran = fairlead("plan", *inputs, *wrong, "--out", out)
        assert (ran.returncode, out.exists()) == (2, False)
        assert said in ran.stderr
        assert ran.stderr.count("\n") == 1
        assert "Traceback" not in ran.stderr


def test_settings_with_a_fault_name_the_line(inputs: list[str | Path], tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text("gpus: {count: 8, memory_gib: 80}\nrate_per_s: 1.0\nmodel: []\n")
    ran = fairlead("plan", *inputs, "--min-quality", "60")
    assert ran.returncode == 2
    assert 'cascade.yaml:3: model: unknown key; did you mean "models"?' in ran.stderr


def test_without_its_libraries_it_says_what_to_install(inputs: list[str | Path]) -> None:
    ran = fairlead("plan", *inputs, "--min-quality", "60", lacks="numpy")
    assert ran.returncode == 2
    assert "pip install '.[plan]'" in ran.stderr


def profiling(folder: Path) -> list[str | Path]:
    """Of one request, at a gateway that is not there."""
    requests = folder / "requests.jsonl"
    requests.write_text('{"id": "a", "prompt": "hello"}\n')
    return ["profile", requests, "--url", "http://127.0.0.1:1", "--out", folder / "p.jsonl"]


def test_a_judge_that_is_no_function_is_reported(tmp_path: Path) -> None:
    arguments = profiling(tmp_path)
    ran = fairlead("plan", *arguments, "--models", "small,large", "--judge", "nowhere:exact")
    assert ran.returncode == 2
    assert 'the judge "nowhere:exact" cannot be loaded' in ran.stderr
    ran = fairlead("plan", *arguments, "--models", "small", "--judge", "math:sqrt")
    assert "at least two different models" in ran.stderr


def test_models_that_cannot_be_reached_end_it_with_1_and_a_reason(tmp_path: Path) -> None:
    arguments = profiling(tmp_path)
    ran = fairlead("plan", *arguments, "--models", "small,large", "--judge", "math:sqrt")
    assert (ran.returncode, "2 requests failed" in ran.stderr) == (1, True)
