"""`fairlead bench`: how long a decision takes, and what Fairlead costs behind a real Envoy on this machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead bench --quick --out bench-results"


class Part(StrEnum):
    decision = "decision"
    envoy = "envoy"


def register(app: typer.Typer) -> None:
    app.command("bench", epilog=_EXAMPLE)(bench)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="About a minute: fewer rounds and repeats.")] = False,
    only: Annotated[Part | None, typer.Option(help="One part alone.")] = None,
    out: Annotated[Path, typer.Option(help="Where bench.md and bench.json go.", metavar="FOLDER")] = Path(
        "benchmarks/results"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes other bodies and endpoints.")] = 0,
) -> None:
    """Measure this machine in about five minutes: the decision alone, then through Envoy beside a null processor.

    Ends 1 if a request failed. A target that is missed is printed and does not change the exit code.
    """
    from fairlead.bench import run
    from fairlead.bench.report import markdown, write
    from fairlead.errors import UserError

    arguments = [*(["--quick"] if quick else []), *(["--only", only.value] if only else []), "--seed", str(seed)]
    report = run.run(
        command=" ".join(("fairlead", "bench", *arguments)),
        seed=seed,
        effort=run.QUICK if quick else run.FULL,
        has_decision=only is not Part.envoy,
        has_envoy=only is not Part.decision,
    )
    try:
        write(report, out)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    typer.echo(markdown(report))
    if report.envoy is not None and report.envoy.errors():
        typer.echo(f"fairlead bench: {report.envoy.errors()} requests failed; see {out / 'bench.md'}", err=True)
        raise typer.Exit(1)
