"""`fairlead fit` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.core.capability import parse_capability_file
from tests.command import fairlead


@pytest.fixture
def attempts(tmp_path: Path) -> Path:
    """Two models at two tasks; the first is right on short prompts only."""
    lines = ["model,language,bucket,task,correct,ms,tokens"]
    for number in range(40):
        for bucket, tokens in (("4K", 4096), ("32K", 32768)):
            short_right = int(number % 10 != 0) if bucket == "4K" else int(number % 10 == 0)
            lines.append(f"small,english,{bucket},kv-lookup,{short_right},{tokens * 0.05},{tokens}")
            lines.append(f"large,ja,{bucket},summary,{int(number % 4 != 0)},,{tokens}")
    path = tmp_path / "attempts.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_each_task_family_becomes_a_file_that_the_sidecar_reads_and_a_picture(attempts: Path, tmp_path: Path) -> None:
    ran = fairlead("fit", attempts, "--out", tmp_path / "new" / "models")
    assert (ran.returncode, ran.stderr) == (0, "")
    written = tmp_path / "new" / "models"
    assert sorted(path.name for path in written.iterdir()) == [
        "kv-lookup.json",
        "kv-lookup.png",
        "summary.json",
        "summary.png",
    ]
    small = parse_capability_file((written / "kv-lookup.json").read_bytes()).of_model("small")
    assert small.success_probability("en", 0) > 0.7 > 0.3 > small.success_probability("en", 3)
    assert "small: {prefill_ms_per_token: 0.05}" in ran.stdout
    assert f"wrote {written / 'summary.json'}" in ran.stdout.splitlines()


@pytest.mark.slow
def test_the_same_table_and_seed_give_the_same_bytes(attempts: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert fairlead("fit", attempts, "--out", tmp_path / name, "--seed", "3").returncode == 0
    for file in ("kv-lookup.json", "kv-lookup.png"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_without_a_plot_matplotlib_is_not_needed(attempts: Path, tmp_path: Path) -> None:
    ran = fairlead("fit", attempts, "--out", tmp_path / "models", "--no-plot", lacks="matplotlib")
    assert ran.returncode == 0
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["kv-lookup.json", "summary.json"]


@pytest.mark.parametrize("library", ["sklearn", "polars", "matplotlib"])
def test_a_missing_library_is_one_sentence_that_says_what_to_install(attempts: Path, library: str) -> None:
    ran = fairlead("fit", attempts, lacks=library)
    assert ran.returncode == 2
    assert f"fitting needs {library}" in ran.stderr
    assert ran.stderr.endswith("in a checkout of Fairlead run: pip install '.[fit]'\n")
    assert ran.stderr.count("\n") == 1


def test_a_bad_cell_is_one_sentence_and_ends_with_2(attempts: Path, tmp_path: Path) -> None:
    with attempts.open("a") as table:
        table.write("small,klingon,4K,kv-lookup,1,,\n")
    ran = fairlead("fit", attempts, "--out", tmp_path / "models")
    assert ran.returncode == 2
    assert f'fairlead: {attempts}: line 162, column "language": "klingon" is not a language' in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "models").exists()


def test_an_output_folder_that_cannot_be_is_one_sentence_and_ends_with_2(attempts: Path) -> None:
    ran = fairlead("fit", attempts, "--out", attempts, "--no-plot")
    assert ran.returncode == 2
    assert f"{attempts}: cannot be written: File exists" in ran.stderr


@pytest.mark.parametrize("wrong", [["--folds", "2"], ["--seed", "-1"], ["--bogus"]])
def test_wrong_use_ends_with_2(attempts: Path, wrong: list[str]) -> None:
    assert fairlead("fit", attempts, *wrong).returncode == 2


def test_help_shows_an_example() -> None:
    ran = fairlead("fit", "--help")
    assert ran.returncode == 0
    assert "fairlead fit attempts.csv --out models/" in " ".join(ran.stdout.split())


def test_short_prompts_are_distinguished_when_the_first_bucket_is_theirs(tmp_path: Path) -> None:
    rows = [
        f"small,en,{tokens},{int(tokens < 100 or number % 10 == 0)}" for tokens in (64, 512) for number in range(40)
    ]
    table = tmp_path / "attempts.csv"
    table.write_text("\n".join(["model,language,tokens,correct", *rows]) + "\n")
    ran = fairlead("fit", table, "--out", tmp_path, "--first-bucket", "64")
    assert (ran.returncode, ran.stderr) == (0, "")
    small = parse_capability_file((tmp_path / "kv-lookup.json").read_bytes()).of_model("small")
    assert small.success_probability("en", 0, 60) > 0.7 > 0.3 > small.success_probability("en", 0, 500)
