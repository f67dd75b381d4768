"""`fairlead replay`: recorded traffic through the router's own code and simulated engines, to compare policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.tools.commands import options

_EXAMPLE = "Example: fairlead replay trace.jsonl.gz --policies fairlead,least_request,ear --seeds 5 --load 0.7"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLE)(replay)


def replay(
    traces: Annotated[
        list[str],
        typer.Argument(
            help="Traces: .jsonl or .csv, compressed or not, or a folder or s3:// place of decisions; see "
            "docs/replay.md.",
            metavar="TRACE...",
        ),
    ],
    policies: Annotated[
        str,
        typer.Option(
            help="Names separated by commas, each with :key=value for parameters and @30s for stale engine reports; "
            "the others are compared with the first.",
            metavar="NAMES",
        ),
    ] = "fairlead,least_request,session_affinity",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each policy.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    world: options.World = None,
    load: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="Rate of requests, as a share of what the best of --reference can serve."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Policies, with commas between; the greatest of their capacities is --load 1.",
            metavar="NAMES",
            show_default="--policies",
        ),
    ] = None,
    faster: Annotated[
        float | None, typer.Option(min=1e-3, max=1e6, help="Start conversations this many times as often.")
    ] = None,
    cap_tokens: options.CapTokens = 65_536,
    think_cap_s: Annotated[float, typer.Option(min=0, help="Cut longer think times of agents to this.")] = 60.0,
    zipf: Annotated[
        float | None, typer.Option(min=0, max=5, help="Draw agent sessions with Zipf weights of this exponent.")
    ] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="With --zipf: how many sessions to draw.")] = None,
    from_s: Annotated[float, typer.Option(min=0, help="Leave out conversations that start earlier.")] = 0.0,
    to_s: Annotated[float | None, typer.Option(min=0, help="Leave out conversations that start later.")] = None,
    target_ttft_ms: Annotated[float, typer.Option(min=0, help="Latest first token that counts as goodput.")] = 5000.0,
    target_tpot_ms: Annotated[float, typer.Option(min=0, help="Slowest time per token that does.")] = 100.0,
    jobs: options.Jobs = None,
    out: Annotated[
        Path, typer.Option(help="For report.html, report.md, pictures and requests.parquet.", metavar="FOLDER")
    ] = Path("replay"),
) -> None:
    """Judge policies on recorded traffic, in simulated time: the same seed gives the same result, bit for bit."""
    from fairlead.errors import UserError, how_to_install

    try:
        from fairlead.tools.replay import replay_study
    except ModuleNotFoundError as error:
        raise UserError(f"replay needs {error.name}, which is not installed; {how_to_install('replay')}") from None
    from fairlead.tools.replay.claude_code import Sampling
    from fairlead.tools.replay.policy_spec import read_policy_spec
    from fairlead.tools.replay.rows import LatencyTarget
    from fairlead.tools.replay.worlds import world_called

    if load is not None and faster is not None:
        raise UserError("--load and --faster both set the rate; give one of them")
    if draws is not None and zipf is None:
        raise UserError("--draws says how many sessions --zipf draws; give --zipf too")
    names = _names(policies, "--policies")
    request = replay_study.ReplayRequest(
        traces=tuple(traces),
        specs=tuple(map(read_policy_spec, names)),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        world=world_called(world),
        sampling=Sampling(cap_tokens, think_cap_s, zipf, draws),
        from_s=from_s,
        to_s=to_s if to_s is not None else float("inf"),
        faster=faster or 1.0,
        load=load,
        references=tuple(map(read_policy_spec, names if reference is None else _names(reference, "--reference"))),
        target=LatencyTarget(target_ttft_ms, target_tpot_ms),
    )
    typer.echo(replay_study.make(request, out, jobs))


def _names(text: str, option: str) -> list[str]:
    from fairlead.errors import UserError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise UserError(f"{option} {text}: write each policy once, with commas between")
    return names
