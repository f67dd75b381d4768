"""`fairlead bench-rivals`: Fairlead and other gateways, in the same passes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead bench-rivals --quick --out bench-results"


def register(app: typer.Typer) -> None:
    app.command("bench-rivals", epilog=_EXAMPLE)(bench_rivals)


def bench_rivals(
    quick: Annotated[
        bool, typer.Option("--quick", help="About a minute: one round of short passes, two sizes.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=100, help="More make medians better.", show_default="3")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where rivals.md and rivals.json go.", metavar="FOLDER")] = Path(
        "benchmarks/results"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes other prompts.")] = 0,
) -> None:
    """Compare with sglang-router, smg, vllm-router and llm-d's endpoint picker in some six minutes.

    The first run installs each into ~/.cache/fairlead/rivals; the pickers need Go and take ten minutes to compile.
    A rival that cannot be had or started is in the report with the reason. Ends 1 if a request through Fairlead failed.
    """
    import msgspec

    from fairlead.processes import ChildError
    from fairlead.tools.bench.rivals import run
    from fairlead.tools.bench.rivals.report import markdown, write
    from fairlead.tools.study import check_writable, results_in

    check_writable(out)
    effort = run.QUICK if quick else run.FULL
    if rounds is not None:
        effort = msgspec.structs.replace(effort, rounds=rounds)
    arguments = [*(["--quick"] if quick else []), "--rounds", str(effort.rounds), "--seed", str(seed)]
    try:
        report = run.run(" ".join(("fairlead", "bench-rivals", *arguments)), seed, effort)
    except ChildError as error:
        typer.echo(f"fairlead bench-rivals: {error}", err=True)
        raise typer.Exit(1) from None
    with results_in(out) as folder:
        write(report, folder)
    typer.echo(markdown(report))
    if report.own_failures():
        typer.echo(f"fairlead bench-rivals: {report.own_failures()} requests failed; see {out / 'rivals.md'}", err=True)
        raise typer.Exit(1)
