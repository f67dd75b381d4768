"""`fairlead replay`: recorded traffic through the router's own code and simulated engines; policies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EXAMPLE = "Example: fairlead replay trace.jsonl.gz --policies fairlead,least_request,ear --seeds 5 --load 0.7"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLE)(replay)


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(help="Traces: .jsonl or .csv, packed or not; see docs/replay.md.", metavar="TRACE..."),
    ],
    policies: Annotated[
        str,
        typer.Option(
            help="Names with commas between, each with key=value after colons and @30s for late engine reports; the "
            "others are compared with the first.",
            metavar="NAMES",
        ),
    ] = "fairlead,least_request,session_affinity",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each policy.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The least of the seeds.")] = 0,
    world: Annotated[
        Path | None,
        typer.Option(help="YAML: engines, regions, models.", metavar="FILE", show_default="8 engines"),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="Rate of requests, as a share of what --reference can serve."),
    ] = None,
    reference: Annotated[str, typer.Option(help="The policy that --load speaks of.")] = "least_request",
    faster: Annotated[
        float | None, typer.Option(min=1e-3, max=1e6, help="Start conversations so many times as often.")
    ] = None,
    cap_tokens: Annotated[
        int, typer.Option(min=1, help="Cut agent sessions before their first longer prompt.")
    ] = 65_536,
    think_cap_s: Annotated[float, typer.Option(min=0, help="Longer think times of agents are cut to this.")] = 60.0,
    zipf: Annotated[
        float | None, typer.Option(min=0, max=5, help="Draw agent sessions with Zipf weights of this exponent.")
    ] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="With --zipf: how many sessions to draw.")] = None,
    from_s: Annotated[float, typer.Option(min=0, help="Leave out what starts earlier.")] = 0.0,
    to_s: Annotated[float | None, typer.Option(min=0, help="Leave out what starts later.")] = None,
    target_ttft_ms: Annotated[float, typer.Option(min=0, help="First tokens up to here count as goodput.")] = 5000.0,
    target_tpot_ms: Annotated[float, typer.Option(min=0, help="Milliseconds a token that do.")] = 100.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core")] = None,
    out: Annotated[
        Path, typer.Option(help="For report.html, report.md, pictures and requests.parquet.", metavar="FOLDER")
    ] = Path("replay"),
) -> None:
    """Judge policies on recorded traffic, in simulated time: the same seed gives the same result, bit for bit."""
    from fairlead.errors import UserError

    try:
        from fairlead.replay import study
    except ModuleNotFoundError as error:
        raise UserError(
            f"replay needs {error.name}, which is not installed; run: pip install 'fairlead[replay]'"
        ) from None
    from fairlead.replay.claude_code import Sampling
    from fairlead.replay.contest import contestant
    from fairlead.replay.rows import Target
    from fairlead.replay.world import alike
    from fairlead.replay.world_file import read_world

    if load is not None and faster is not None:
        raise UserError("--load and --faster both set the rate; give one of them")
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise UserError(f"--policies {policies}: write each policy once, with commas between")
    request = study.Request(
        traces=tuple(map(str, traces)),
        contestants=tuple(map(contestant, names)),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        world=read_world(world) if world is not None else alike(8),
        sampling=Sampling(cap_tokens, think_cap_s, zipf, draws),
        from_s=from_s,
        to_s=to_s if to_s is not None else float("inf"),
        faster=faster or 1.0,
        load=load,
        reference=contestant(reference),
        target=Target(target_ttft_ms, target_tpot_ms),
    )
    typer.echo(study.make(request, out, jobs))
