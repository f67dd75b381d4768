"""`fairlead tune`: weights of a policy, learned on recorded traffic in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.tools.commands import options

_EXAMPLE = "Example: fairlead tune trace.jsonl.gz --world world.yaml --load 0.7 --out tune/"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLE)(tune)


def tune(
    traces: Annotated[
        list[str],
        typer.Argument(
            help="Traces: .jsonl or .csv, compressed or not, or a folder or s3:// place of decisions; see "
            "docs/replay.md.",
            metavar="TRACE...",
        ),
    ],
    policy: Annotated[
        str, typer.Option(help="fairlead or gorgo, with :key=value for the weights to start from.", metavar="NAME")
    ] = "fairlead",
    proposals: Annotated[int, typer.Option(min=1, max=10_000, help="Weights to try.")] = 24,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Simulations of each set of weights.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    world: options.World = None,
    load: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="Rate of requests, as a share of what least_request can serve."),
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.1, max=0.9, help="Share of each trace's time to tune on; the rest is held out.")
    ] = 0.5,
    cap_tokens: options.CapTokens = 65_536,
    jobs: options.Jobs = None,
    out: Annotated[
        Path, typer.Option(help="For weights.yaml, proposals.jsonl, tune.md and tune.png.", metavar="FOLDER")
    ] = Path("tune"),
) -> None:
    """Learn the weights of a policy on the first part of traces, and judge them on the rest.

    A gain is reported, and weights.yaml written, only if its confidence interval excludes zero gain.
    """
    from fairlead.errors import UserError, how_to_install

    try:
        from fairlead.tools.tune import tune_study
    except ModuleNotFoundError as error:
        raise UserError(f"tuning needs {error.name}, which is not installed; {how_to_install('replay')}") from None
    from fairlead.tools.replay.claude_code import Sampling
    from fairlead.tools.replay.policy_spec import read_policy_spec
    from fairlead.tools.replay.run import Traffic
    from fairlead.tools.replay.worlds import world_called

    request = tune_study.TuneRequest(
        traffics=tuple(Traffic(trace, Sampling(cap_tokens)) for trace in traces),
        policy=read_policy_spec(policy),
        world=world_called(world),
        load=load,
        seeds=tuple(range(seeds)),
        share=share,
        proposals=proposals,
        seed=seed,
    )
    typer.echo(tune_study.make(request, out, jobs))
