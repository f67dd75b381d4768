"""`fairlead bench-reuse`: what context reuse saves and costs, on real and made lists of retrieved documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead bench-reuse --quick --out bench-results"
_LISTS = Path("benchmarks/data/mtrag_retrieval.json.gz")


def register(app: typer.Typer) -> None:
    app.command("bench-reuse", epilog=_EXAMPLE)(bench_reuse)


def bench_reuse(
    quick: Annotated[bool, typer.Option("--quick", help="Half a minute: small indexes, one kind of traffic.")] = False,
    lists: Annotated[Path, typer.Option(help="Which documents each turn retrieved.", metavar="FILE")] = _LISTS,
    contextpilot: Annotated[
        Path | None,
        typer.Option(help="Compare with the paper's package: the folder of its unpacked wheel.", metavar="FOLDER"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where reuse.md and reuse.json go.", metavar="FOLDER")] = Path(
        "benchmarks/results"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes other synthetic lists.")] = 0,
) -> None:
    """Share of tokens found in the cache with and without reuse, tokens to compute, and times, in some two minutes."""
    from rich.console import Console

    from fairlead.tools.bench.reuse.report import markdown, write
    from fairlead.tools.bench.reuse.run import run
    from fairlead.tools.study import check_writable, results_in

    check_writable(out)
    arguments = [*(["--quick"] if quick else []), *(["--contextpilot FOLDER"] if contextpilot is not None else [])]
    command = " ".join(("fairlead bench-reuse", *arguments, f"--seed {seed}"))
    console = Console(stderr=True)
    with console.status("starting") as status:
        report = run(command, lists, contextpilot, seed, quick, status.update)
    with results_in(out) as folder:
        write(report, folder)
    typer.echo(markdown(report))
