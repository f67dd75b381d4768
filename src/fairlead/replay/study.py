"""One study: traces, policies and seeds run, and its report written; nothing half written is left when it fails."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import polars as pl
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fairlead.bench.commit import commit
from fairlead.errors import UserError
from fairlead.replay.claude_code import Sampling
from fairlead.replay.contest import Contestant, faster_for
from fairlead.replay.html import page
from fairlead.replay.picture import trace_png
from fairlead.replay.report import Facts, Results, markdown
from fairlead.replay.rows import Target
from fairlead.replay.run import Outcome, Plan, Traffic, run, workload_of
from fairlead.replay.world import World


class Request(msgspec.Struct, frozen=True):
    """What is asked for. The first of `contestants` is the one that the others are compared with."""

    traces: tuple[str, ...]
    contestants: tuple[Contestant, ...]
    seeds: tuple[int, ...]
    world: World
    reference: Contestant
    sampling: Sampling = Sampling()
    from_s: float = 0.0
    to_s: float = float("inf")
    faster: float = 1.0
    load: float | None = None
    target: Target = Target()


def make(request: Request, out: Path, jobs: int | None) -> str:
    """Run it with a progress bar and write the report to `out`; the report's Markdown. Raises UserError."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} requests"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=2,
    ) as shown:
        plan, requests, loads = planned(request)
        task = shown.add_task("replay", total=requests * len(request.seeds) * len(request.contestants))
        try:
            out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as folder:
                outcomes = run(plan, jobs=jobs, folder=Path(folder), progress=lambda n: shown.advance(task, n))
                return _write(request, outcomes, loads, Path(folder), out)
        except OSError as error:
            raise UserError(f"--out {error.filename or out}: cannot be written ({error.strerror})") from None


def planned(request: Request) -> tuple[Plan, int, tuple[str, ...]]:
    """The plan, requests of one policy and seed, and how loads were set. Reads each trace once, so mistakes show."""
    traffics: list[Traffic] = []
    loads: list[str] = []
    names: set[str] = set()
    requests = 0
    for path in request.traces:
        traffic = Traffic(path, request.sampling, request.from_s, request.to_s, request.faster)
        workload = workload_of(traffic, request.seeds[0])
        requests += workload.requests
        if workload.name in names:
            raise UserError(f"{path}: another trace is called {workload.name} too; rename the file")
        names.add(workload.name)
        if request.load is not None:
            faster = faster_for(request.load, request.world, workload, request.reference)
            traffic = msgspec.structs.replace(traffic, faster=faster)
            loads.append(
                f"{workload.name}: {request.load:g} of what `{request.reference.text}` can serve, conversations start "
                f"{faster:.3g} times as often as recorded"
            )
        traffics.append(traffic)
    plan = Plan(tuple(traffics), request.contestants, request.seeds, request.world, request.target)
    return plan, requests, tuple(loads)


def _write(request: Request, outcomes: Sequence[Outcome], loads: tuple[str, ...], folder: Path, out: Path) -> str:
    """Everything is written in `folder` first, and then takes the place of what was there."""
    results = Results(outcomes)
    parts = sorted(folder.glob("*.parquet"))
    requests = folder / "requests"
    pl.scan_parquet(parts).sink_parquet(requests)
    facts = Facts(
        command=shlex.join(["fairlead", *sys.argv[1:]]),
        commit=commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        engines=len(request.world.endpoints),
        seeds=request.seeds,
        target=request.target,
        loads=loads,
    )
    text = markdown(results, facts)
    pictures = {f"{trace}.png": trace_png(results, trace, requests) for trace in results.traces}
    for name, data in pictures.items():
        (folder / name).write_bytes(data)
    (folder / "report.md").write_text(text, encoding="utf-8")
    (folder / "report.html").write_text(page(text, pictures), encoding="utf-8")
    (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcomes), indent=1) + b"\n")
    requests.rename(folder / "requests.parquet")
    for name in (*pictures, "report.md", "report.html", "summary.json", "requests.parquet"):
        (folder / name).replace(out / name)
    return text
