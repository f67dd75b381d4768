"""`fairlead bench-tracing`: what a request's path costs with tracing off, on and unsampled, and on and sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead bench-tracing --quick --out bench-results"


def register(app: typer.Typer) -> None:
    app.command("bench-tracing", epilog=_EXAMPLE)(bench_tracing)


def bench_tracing(
    quick: Annotated[bool, typer.Option("--quick", help="A minute: two short rounds, wide spreads.")] = False,
    out: Annotated[Path, typer.Option(help="Where tracing.md and tracing.json go.", metavar="FOLDER")] = Path(
        "benchmarks/results"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes other bodies.")] = 0,
) -> None:
    """One table: requests a second, latency and CPU with tracing off, on and unsampled, on and sampled; ten minutes.

    Ends 1 if a request failed.
    """
    from fairlead.tools.bench.tracing import run
    from fairlead.tools.bench.tracing.report import markdown, write
    from fairlead.tools.study import check_writable, progress_bar, results_in
    from fairlead.tracing import require_library

    require_library()
    check_writable(out)
    effort = run.QUICK if quick else run.FULL
    command = " ".join(("fairlead bench-tracing", *(["--quick"] if quick else []), f"--seed {seed}"))
    with progress_bar("") as progress:
        task = progress.add_task("tracing", total=run.steps(effort))
        report = run.run(command, seed, effort, lambda: progress.advance(task))
    with results_in(out) as folder:
        write(report, folder)
    typer.echo(markdown(report))
    if any(each.errors for each in report.runs):
        raise typer.Exit(1)
