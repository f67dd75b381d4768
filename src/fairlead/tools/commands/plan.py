"""`fairlead plan`: plan the thresholds and GPUs of a cascade together, and collect the data for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.errors import UserError, how_to_install

if TYPE_CHECKING:
    import aiohttp

    from fairlead.cascade.judge import Judge
    from fairlead.tools.plan.plan import Plan
    from fairlead.tools.plan.profiling import Asking, ProfilingCounts, SampleRequest

_EXAMPLE = "Example: fairlead plan --settings cascade.yaml --profile profile.jsonl --min-quality 85"
_PROFILE_EXAMPLE = (
    "Example: fairlead plan profile requests.jsonl --url http://127.0.0.1:8080 --models small,large --judge judge:exact"
)
_WATCH_EXAMPLE = "Example: fairlead plan watch --route answer --config fairlead.yaml --min-quality 85"
_PLANNING_LIBRARIES = {"numpy", "scipy", "matplotlib"}

_commands = typer.Typer(
    help="Plan a cascade: which answers are good enough, and how many GPUs each model gets.",
    epilog=_EXAMPLE,
    rich_markup_mode="markdown",
)


def register(app: typer.Typer) -> None:
    app.add_typer(_commands, name="plan")


@_commands.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    settings: Annotated[Path, typer.Option(help="Models, GPUs and traffic.", metavar="FILE")] = Path("cascade.yaml"),
    profile: Annotated[Path, typer.Option(help="The profile that `plan profile` wrote.", metavar="FILE")] = Path(
        "profile.jsonl"
    ),
    min_quality: Annotated[
        float | None, typer.Option(help="Plan for the least latency with at least this quality.", min=0, max=100)
    ] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="Plan for the best quality within this p95 of requests.", min=1)
    ] = None,
    fixed_deployment: Annotated[
        bool, typer.Option("--fixed-deployment", help="Plan thresholds only, for the replicas in the settings.")
    ] = False,
    penalty_ms: Annotated[
        float | None,
        typer.Option(help="Penalty for missing the quality by the models' whole range.", show_default="prohibitive"),
    ] = None,
    out: Annotated[Path, typer.Option(help="The plan.", metavar="FILE")] = Path("plan.yaml"),
    plot: Annotated[
        Path | None, typer.Option(help="A picture of quality against latency.", metavar="FILE", show_default="none")
    ] = None,
) -> None:
    """Plan thresholds and GPUs together. Give `--min-quality` or `--max-latency-ms`."""
    if context.invoked_subcommand is not None:
        return
    _only_one(min_quality, max_latency_ms)
    if penalty_ms is not None and (penalty_ms <= 0 or min_quality is None):
        raise UserError("--penalty-ms is a price, above 0, for missing --min-quality")
    with _planning_libraries():
        _plan(settings, profile, min_quality, max_latency_ms, penalty_ms, fixed_deployment, out, plot)


def _only_one(min_quality: float | None, max_latency_ms: float | None) -> None:
    if (min_quality is None) == (max_latency_ms is None):
        raise UserError("give one thing to plan for: --min-quality 85, or --max-latency-ms 5000")


@contextlib.contextmanager
def _planning_libraries() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in _PLANNING_LIBRARIES:
            raise
        raise UserError(f"planning needs {error.name}, which is not installed; {how_to_install('plan')}") from None


def _plan(
    settings_path: Path,
    profile_path: Path,
    min_quality: float | None,
    max_latency_ms: float | None,
    penalty_ms: float | None,
    fixed_deployment: bool,
    out: Path,
    plot: Path | None,
) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from fairlead.cascade.rows import read_rows
    from fairlead.tools.plan.make import make_plan
    from fairlead.tools.plan.plan_file import write_plan
    from fairlead.tools.plan.sample import make_profile
    from fairlead.tools.plan.search import Aim
    from fairlead.tools.plan.settings import load_settings

    settings = load_settings(settings_path)
    names = [model.name for model in settings.models]
    sample = make_profile(read_rows(profile_path), names, str(profile_path))
    aim = Aim(min_quality, max_latency_ms, penalty_ms)
    columns = (TextColumn("Simulating replicas"), BarColumn(pulse_style="cyan"), MofNCompleteColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=None)
        made = make_plan(
            settings, sample, aim, fixed_deployment=fixed_deployment, progressed=lambda: progress.advance(task)
        )
    write_plan(out, made.plan)
    if plot is not None:
        from fairlead.tools.plan.plot import write_plot

        write_plot(plot, made)
    _print(made.plan)
    for path in (out, plot):
        if path is not None:
            typer.echo(f"wrote {path}")


@_commands.command(epilog="Example: fairlead plan explain plan.yaml")
def explain(file: Annotated[Path, typer.Argument(help="A plan.", metavar="PLAN")] = Path("plan.yaml")) -> None:
    """Explain in words what a plan does and why."""
    with _planning_libraries():
        from fairlead.tools.plan.explain import explain as paragraphs
        from fairlead.tools.plan.plan_file import read_plan

        typer.echo("\n\n".join(paragraphs(read_plan(file))))


@_commands.command(epilog="Example: fairlead plan diff plan-monday.yaml plan.yaml")
def diff(
    old: Annotated[Path, typer.Argument(help="A plan.", metavar="OLD")],
    new: Annotated[Path, typer.Argument(help="Another.", metavar="NEW")],
) -> None:
    """Show what changes from one plan to another."""
    with _planning_libraries():
        from fairlead.tools.plan.explain import differences
        from fairlead.tools.plan.plan_file import read_plan

        typer.echo("\n".join(differences(read_plan(old), read_plan(new))) or "no difference")


@_commands.command(epilog=_PROFILE_EXAMPLE)
def profile(
    requests: Annotated[
        Path, typer.Argument(help="JSON lines: requests as the API takes them, each with an id.", show_default=False)
    ],
    url: Annotated[str, typer.Option(help="Where the models are served.", metavar="URL")],
    models: Annotated[str, typer.Option(help="The models of the cascade, smallest first.", metavar="NAMES")],
    judge: Annotated[
        str, typer.Option(help="An OpenAI-compatible endpoint, or a Python function module:function.", metavar="JUDGE")
    ],
    judge_model: Annotated[str, typer.Option(help="The model that judges, at an endpoint.", metavar="NAME")] = "",
    out: Annotated[Path, typer.Option(help="The table to write; a second run continues it.", metavar="FILE")] = Path(
        "profile.jsonl"
    ),
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at once.")] = 4,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Limit for one answer, and for one judgement.")] = 300.0,
) -> None:
    """Ask every model of a cascade the same questions, and have the answers judged.

    Ends 1 if some could not be asked or judged; run it again to try those again.
    """
    with _planning_libraries():
        from fairlead.tools.plan.profiling import Asking, read_requests

    names = [name.strip() for name in models.split(",") if name.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError("--models: name at least two different models, smallest first, for example small,large")
    asking = Asking(url, names, concurrency, timeout_s)
    counts = asyncio.run(_profile(read_requests(requests), asking, judge, judge_model, out))
    typer.echo(f"{out}: {counts.done:,} answers judged")
    if counts.failed or counts.unjudged:
        typer.echo(
            f"fairlead plan profile: {counts.failed:,} requests failed and {counts.unjudged:,} answers have no score "
            f"(last: {counts.last_cause}); run it again to try those again",
            err=True,
        )
        raise typer.Exit(1)


async def _profile(
    requests: list[SampleRequest], asking: Asking, judge: str, judge_model: str, out: Path
) -> ProfilingCounts:
    import aiohttp
    from rich.progress import Progress

    from fairlead.tools.plan.profiling import done_already
    from fairlead.tools.plan.profiling import profile as ask_and_judge

    try:
        done = done_already(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            chosen = _judge(judge, judge_model, session)
            with Progress(transient=True) as progress:
                left = len(requests) * len(asking.models) - len(done)
                task = progress.add_task("Asking and judging", total=max(left, 0))
                return await ask_and_judge(requests, asking, chosen, out, done, session, lambda: progress.advance(task))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None


@_commands.command(epilog=_WATCH_EXAMPLE)
def watch(
    route: Annotated[str, typer.Option(help="The route of the cascade.", metavar="NAME")],
    config: Annotated[
        list[Path],
        typer.Option(
            help="The sidecar's configuration; again for each further sidecar that has its own.", metavar="FILE"
        ),
    ] = [Path("fairlead.yaml")],  # noqa: B006 - typer copies it
    sidecar: Annotated[
        list[str] | None,
        typer.Option(
            help="Admin port of a sidecar; again for each further one that shares the configuration.",
            metavar="HOST:PORT",
            show_default="listen.admin",
        ),
    ] = None,
    settings: Annotated[Path, typer.Option(help="Models, GPUs and traffic.", metavar="FILE")] = Path("cascade.yaml"),
    profile: Annotated[
        Path, typer.Option(help="The profile that the present plan was made from.", metavar="FILE")
    ] = Path("profile.jsonl"),
    min_quality: Annotated[float | None, typer.Option(min=0, max=100, help="As in the present plan.")] = None,
    max_latency_ms: Annotated[float | None, typer.Option(min=1, help="As in the present plan.")] = None,
    window_s: Annotated[float, typer.Option(min=0.5, help="Length of a window; three in a row decide.")] = 300.0,
    windows: Annotated[
        int | None, typer.Option(min=1, help="End after so many windows.", show_default="endless")
    ] = None,
    out: Annotated[Path, typer.Option(help="The newest plan.", metavar="FILE")] = Path("plan.yaml"),
    advice: Annotated[Path, typer.Option(help="Replica counts for Kubernetes.", metavar="FILE")] = Path(
        "allocation.yaml"
    ),
) -> None:
    """Plan again whenever the traffic has moved: thresholds take effect at once, GPUs are advice.

    The route needs `sample: {share: ..., file: ...}` in the configuration.
    """
    _only_one(min_quality, max_latency_ms)
    with _planning_libraries():
        from fairlead.cascade.rows import read_rows
        from fairlead.tools.plan.replanning import Replanner
        from fairlead.tools.plan.search import Aim
        from fairlead.tools.plan.settings import load_settings
        from fairlead.tools.plan.watching import Watched, watch_windows

        planner = Replanner(load_settings(settings), Aim(min_quality, max_latency_ms), read_rows(profile))
        watched = Watched(config, route, out, advice, window_s, sidecar or ())
        with contextlib.suppress(KeyboardInterrupt):
            for line in watch_windows(planner, watched, windows):
                typer.echo(line)


def _judge(name: str, model: str, session: aiohttp.ClientSession) -> Judge:
    from fairlead.cascade.judge import EndpointJudge, FunctionJudge, load_function

    if "://" not in name:
        return FunctionJudge(load_function(name, Path.cwd()))
    if not model:
        raise UserError("--judge-model: name the model that judges at that endpoint")
    return EndpointJudge(session, name, model)


def _print(plan: Plan) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fairlead.tools.plan.explain import strategy_words

    table = Table(box=SIMPLE)
    for heading in ("model", "share", "accepts from", "GPUs", "replicas", "p95"):
        table.add_column(heading, justify="left" if heading in ("model", "replicas") else "right", overflow="fold")
    for index, stage in enumerate(plan.stages):
        table.add_row(
            escape(stage.model),
            f"{stage.share:.1%}",
            f"{plan.thresholds[index]:g}" if index < len(plan.thresholds) else "",
            str(stage.gpus),
            strategy_words(stage.strategy),
            f"{stage.latency.p95_ms / 1000:.2f} s" if stage.share else "",
        )
    console = Console()
    console.print(table)
    if len(plan.stages) == 1:
        console.print(f"{plan.stages[0].model} alone: no cascade of these models does better", markup=False)
    console.print(
        f"quality {plan.quality:.1f} ± {1.96 * plan.quality_error:.1f}, end to end p50 "
        f"{plan.end_to_end.p50_ms / 1000:.2f} s and p95 {plan.end_to_end.p95_ms / 1000:.2f} s, "
        f"{plan.gpu_ms / 1000:.2f} GPU-seconds a request",
        highlight=False,
    )
