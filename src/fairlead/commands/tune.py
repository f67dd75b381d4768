"""`fairlead tune`: weights of a policy, learned on recorded traffic in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead tune trace.jsonl.gz --world world.yaml --load 0.7 --out tune/"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLE)(tune)


def tune(
    traces: Annotated[
        list[Path],
        typer.Argument(
            help="Traces: .jsonl or .csv, packed or not, or a folder of decisions; see docs/replay.md.",
            metavar="TRACE...",
        ),
    ],
    policy: Annotated[
        str, typer.Option(help="fairlead or gorgo, with key=value after colons where to start.", metavar="NAME")
    ] = "fairlead",
    proposals: Annotated[int, typer.Option(min=1, max=10_000, help="Weights to try.")] = 24,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Simulations of each.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of the search itself.")] = 0,
    world: Annotated[
        Path | None,
        typer.Option(help="YAML: engines, regions, models.", metavar="FILE", show_default="8 engines"),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="Rate of requests, as a share of what least_request can serve."),
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.1, max=0.9, help="Share of each trace's time to tune on; the rest judges.")
    ] = 0.5,
    cap_tokens: Annotated[
        int, typer.Option(min=1, help="Cut agent sessions before their first longer prompt.")
    ] = 65_536,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core")] = None,
    out: Annotated[
        Path, typer.Option(help="For weights.yaml, proposals.jsonl, tune.md and tune.png.", metavar="FOLDER")
    ] = Path("tune"),
) -> None:
    """Learn the weights of a policy on the first part of traces, and judge them on the rest.

    A gain is reported, and weights.yaml written, only where its confidence interval excludes none.
    """
    from fairlead.errors import UserError

    try:
        from fairlead.tuning import study
    except ModuleNotFoundError as error:
        raise UserError(
            f"tuning needs {error.name}, which is not installed; run: pip install 'fairlead[replay]'"
        ) from None
    from fairlead.replay.claude_code import Sampling
    from fairlead.replay.contest import contestant
    from fairlead.replay.run import Traffic
    from fairlead.replay.world import alike
    from fairlead.replay.world_file import read_world

    request = study.Request(
        traffics=tuple(Traffic(str(trace), Sampling(cap_tokens)) for trace in traces),
        policy=contestant(policy),
        world=read_world(world) if world is not None else alike(8),
        load=load,
        seeds=tuple(range(seeds)),
        share=share,
        proposals=proposals,
        seed=seed,
    )
    typer.echo(study.make(request, out, jobs))
