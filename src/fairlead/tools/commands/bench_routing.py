"""`fairlead bench-routing`: policies compared on the same multi-turn sessions, through a real Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead bench-routing --quick --against cache_aware,lmetric --out bench-results"
_BASELINES = "round_robin,least_request,session_affinity,prefix_cache,cache_aware,lmetric,llm_d"


def register(app: typer.Typer) -> None:
    app.command("bench-routing", epilog=_EXAMPLE)(bench_routing)


def bench_routing(
    quick: Annotated[bool, typer.Option("--quick", help="About a minute: one kind of traffic, two repeats.")] = False,
    against: Annotated[str, typer.Option(help="Policies to compare `fairlead` with.", metavar="NAMES")] = _BASELINES,
    repeats: Annotated[
        int | None,
        typer.Option(min=2, max=20, help="Sets of sessions; more give narrower intervals.", show_default="3"),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where routing.md, routing.json and routing.png go.", metavar="FOLDER")
    ] = Path("benchmarks/results"),
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes other sessions.")] = 0,
) -> None:
    """Compare policies in some eight minutes: cached share, time to first token and to the end, and balance.

    Starts simulated engines, the sidecar and Envoy. Ends 1, with nothing written, if a request failed.
    """
    from fairlead.processes import ChildError
    from fairlead.tools.bench.routing import run
    from fairlead.tools.bench.routing.agents import NotMeasuredError
    from fairlead.tools.bench.routing.plot import write_plot
    from fairlead.tools.bench.routing.report import markdown, write
    from fairlead.tools.study import check_writable, results_in

    check_writable(out)
    plan = run.Plan(
        cells=run.QUICK if quick else run.FULL,
        policies=(run.OURS, *_names(against)),
        repeats=repeats or (2 if quick else 3),
        seed=seed,
    )
    arguments = [*(["--quick"] if quick else []), *(["--against", against] if against != _BASELINES else [])]
    command = " ".join(("fairlead bench-routing", *arguments, f"--repeats {plan.repeats} --seed {seed}"))
    try:
        results = run.run(command, plan)
    except (NotMeasuredError, ChildError) as error:
        typer.echo(f"fairlead bench-routing: {error}", err=True)
        raise typer.Exit(1) from None
    with results_in(out) as folder:
        write(results, folder)
        write_plot(folder / "routing.png", results)
    typer.echo(markdown(results))


def _names(against: str) -> list[str]:
    """Raises UserError for an unknown policy, and for one given twice."""
    from fairlead.errors import UserError
    from fairlead.policies import build_policy
    from fairlead.tools.bench.routing.run import OURS

    names = [name.strip() for name in against.split(",") if name.strip()]
    if not names or len({OURS, *names}) <= len(names):
        raise UserError(f"--against {against}: write policies other than {OURS}, each once, with commas")
    for name in names:
        try:
            build_policy(name, {})
        except ValueError as error:
            raise UserError(f"--against: {error}") from None
    return names
