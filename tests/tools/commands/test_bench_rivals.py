"""`fairlead bench-rivals`, run as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fairlead.tools.bench.rivals import run
from fairlead.tools.bench.rivals.measure import Effort
from fairlead.tools.bench.rivals.report import Report
from fairlead.tools.bench.variants import FAIRLEAD
from fairlead.tools.commands import bench_rivals
from tests.tools.bench.rivals.test_report import a_report, with_errors


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer(pretty_exceptions_enable=False)
    made.callback()(lambda: None)  # a second command, so that typer keeps the name
    bench_rivals.register(made)
    return made


def test_the_report_is_printed_and_written(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, Effort]] = []

    def measured(command: str, seed: int, effort: Effort) -> Report:
        asked.append((command, seed, effort))
        return a_report()

    monkeypatch.setattr(run, "run", measured)
    result = CliRunner().invoke(
        app, ["bench-rivals", "--quick", "--rounds", "2", "--seed", "7", "--out", str(tmp_path)]
    )

    assert result.exit_code == 0
    assert result.stdout.strip() == (tmp_path / "rivals.md").read_text().strip()
    (command, seed, effort) = asked[0]
    assert (command, seed) == ("fairlead bench-rivals --quick --rounds 2 --seed 7", 7)
    assert (effort.rounds, effort.bodies_kib) == (2, run.QUICK.bodies_kib)


def test_a_request_that_failed_through_fairlead_ends_with_1(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run", lambda *_: with_errors(a_report(), FAIRLEAD))

    result = CliRunner().invoke(app, ["bench-rivals", "--out", str(tmp_path)])

    assert result.exit_code == 1
    assert "12 requests failed" in result.stderr


def test_help_shows_an_example(app: typer.Typer) -> None:
    assert "Example: fairlead bench-rivals" in CliRunner().invoke(app, ["bench-rivals", "--help"]).stdout
