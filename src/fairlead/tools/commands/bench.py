"""`fairlead bench`: how long a decision takes, what tables and watches cost, and Fairlead behind a real Envoy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead bench --quick --out bench-results"


class Part(StrEnum):
    decision = "decision"
    tables = "tables"
    envoy = "envoy"


def register(app: typer.Typer) -> None:
    app.command("bench", epilog=_EXAMPLE)(bench)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="About two minutes: fewer rounds and repeats.")] = False,
    only: Annotated[Part | None, typer.Option(help="Run only this part.")] = None,
    out: Annotated[Path, typer.Option(help="Where bench.md and bench.json go.", metavar="FOLDER")] = Path(
        "benchmarks/results"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes other bodies and endpoints.")] = 0,
) -> None:
    """Measure this machine in about ten minutes: decisions, tables and watches, and Envoy against a null processor.

    Ends 1 if a request failed. A target that is missed is printed and does not change the exit code.
    """
    from fairlead.tools.bench import run
    from fairlead.tools.bench.report import markdown, write
    from fairlead.tools.study import check_writable, results_in

    check_writable(out)
    arguments = [*(["--quick"] if quick else []), *(["--only", only.value] if only else []), "--seed", str(seed)]
    report = run.run(
        command=" ".join(("fairlead", "bench", *arguments)),
        seed=seed,
        effort=run.QUICK if quick else run.FULL,
        has_decision=only in (None, Part.decision),
        has_tables=only in (None, Part.tables),
        has_envoy=only in (None, Part.envoy),
    )
    with results_in(out) as folder:
        write(report, folder)
    typer.echo(markdown(report))
    if report.failures():
        typer.echo(f"fairlead bench: {report.failures()} requests failed; see {out / 'bench.md'}", err=True)
        raise typer.Exit(1)
