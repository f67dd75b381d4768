"""`fairlead bench`, run as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fairlead.errors import UserError
from fairlead.tools.bench import run as bench_run
from fairlead.tools.bench.tables.run import Effort as TablesEffort
from fairlead.tools.commands import bench
from tests.tools.bench.test_report import a_report

BRIEF = TablesEffort(0.0, 10, watched_s=0.5, weighed=50_000, endpoints=20, sessions=400)


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer(pretty_exceptions_enable=False)
    made.callback()(lambda: None)  # a second command, so that typer keeps the name `bench`
    bench.register(made)
    return made


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "QUICK", bench_run.Effort(0.0, 10, BRIEF, bench_run.QUICK.envoy))


@pytest.mark.usefixtures("brief")
def test_the_decision_part_alone_is_printed_and_written(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "--quick", "--only", "decision", "--seed", "3", "--out", str(tmp_path)])

    assert result.exit_code == 0
    assert result.stdout.strip() == (tmp_path / "bench.md").read_text().strip()
    assert "`fairlead bench --quick --only decision --seed 3`" in result.stdout
    document = json.loads((tmp_path / "bench.json").read_text())
    assert (document["seed"], document["envoy"], len(document["decision"])) == (3, None, 112)


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
def test_the_tables_part_alone_is_printed_and_written(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "--quick", "--only", "tables", "--out", str(tmp_path)])

    assert result.exit_code == 0
    assert "## Tables and watches" in result.stdout
    assert "A decision among 20 endpoints with 400 sessions" in result.stdout
    document = json.loads((tmp_path / "bench.json").read_text())
    assert (document["envoy"], document["decision"]) == (None, [])
    assert {weight["what"] for weight in document["tables"]["memory"]} >= {"sessions", "blocks, in prompts of 512"}
    assert [run["endpoints"] for run in document["tables"]["watches"]["runs"]] == [10, 100]


def test_a_failed_request_ends_with_1_after_the_report(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_run, "run", lambda **_: a_report(failed=2))

    result = CliRunner().invoke(app, ["bench", "--out", str(tmp_path)])

    assert result.exit_code == 1
    assert "2 requests failed" in result.stderr
    assert (tmp_path / "bench.md").exists()


def test_a_missed_target_alone_ends_with_0(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "run", lambda **_: a_report())

    result = CliRunner().invoke(app, ["bench", "--out", str(tmp_path)])

    assert "**missed**" in result.stdout
    assert result.exit_code == 0


def test_a_folder_that_cannot_be_written_is_reported_in_a_sentence(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(bench_run, "run", lambda **_: a_report())

    result = CliRunner().invoke(app, ["bench", "--out", str(tmp_path / "file")])

    assert isinstance(result.exception, UserError)
    assert "cannot be written" in str(result.exception)


def test_the_help_shows_an_example(app: typer.Typer) -> None:
    assert "Example: fairlead bench" in CliRunner().invoke(app, ["bench", "--help"]).stdout
