"""One study: traces, policies and seeds run, and its report written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import polars as pl
from rich.progress import Progress

from fairlead.errors import UserError
from fairlead.tools.origin import origin
from fairlead.tools.replay.claude_code import Sampling
from fairlead.tools.replay.html import page
from fairlead.tools.replay.picture import trace_png
from fairlead.tools.replay.policy_spec import PolicySpec, capacity_requests
from fairlead.tools.replay.replay_report import Facts, ReplayResults, markdown
from fairlead.tools.replay.rows import LatencyTarget
from fairlead.tools.replay.run import ReplayPlan, RunResult, Traffic, at_load, run, workload_of
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World
from fairlead.tools.study import progress_bar, results_in


class ReplayRequest(msgspec.Struct, frozen=True):
    """What to replay. The other `specs` are compared with the first."""

    traces: tuple[str, ...]
    specs: tuple[PolicySpec, ...]
    seeds: tuple[int, ...]
    world: World
    references: tuple[PolicySpec, ...] = ()  # the best of them sets the load
    sampling: Sampling = Sampling()
    from_s: float = 0.0
    to_s: float = float("inf")
    faster: float = 1.0
    load: float | None = None
    target: LatencyTarget = LatencyTarget()


def make(request: ReplayRequest, out: Path, jobs: int | None) -> str:
    """Run it with a progress bar and write the report to `out`; the report's Markdown. Raises UserError."""
    with progress_bar("requests") as shown:
        plan, requests, loads = planned(request, shown)
        task = shown.add_task("replay", total=requests * len(request.seeds) * len(request.specs))
        with results_in(out) as folder:
            parts = folder / "parts"
            parts.mkdir()
            outcomes = run(plan, jobs=jobs, folder=parts, progress=lambda n: shown.advance(task, n))
            return _write(request, outcomes, loads, parts, folder)


def planned(request: ReplayRequest, shown: Progress | None = None) -> tuple[ReplayPlan, int, tuple[str, ...]]:
    """The plan, requests of one policy and seed, and how loads were set; `shown` gets a bar while that is measured.

    Reads each trace once, so that mistakes show early.
    """
    traffics: list[Traffic] = []
    loads: list[str] = []
    names: set[str] = set()
    requests = 0
    for path in request.traces:
        traffic = Traffic(path, request.sampling, request.from_s, request.to_s, request.faster)
        reading = None if shown is None else shown.add_task(f"reading {path}", total=1)
        workload = workload_of(traffic, request.seeds[0])
        if shown is not None and reading is not None:
            shown.remove_task(reading)
        requests += workload.requests
        if workload.name in names:
            raise UserError(f"{path}: another trace is called {workload.name} too; rename the file")
        names.add(workload.name)
        if request.load is not None:
            advance = _measuring(shown, workload, request) if shown is not None else None
            traffic, note = at_load(request.load, traffic, workload, request.world, request.references, advance)
            loads.append(note)
        traffics.append(traffic)
    plan = ReplayPlan(tuple(traffics), request.specs, request.seeds, request.world, request.target)
    return plan, requests, tuple(loads)


def _measuring(shown: Progress, workload: Workload, request: ReplayRequest) -> Callable[[int], None]:
    requests = capacity_requests(request.world, workload) * len(request.references)
    task = shown.add_task(f"capacity, {workload.name}", total=requests)
    return lambda ended: shown.advance(task, ended)


def _write(
    request: ReplayRequest, outcomes: Sequence[RunResult], loads: tuple[str, ...], parts: Path, folder: Path
) -> str:
    results = ReplayResults(outcomes)
    requests = folder / "requests.parquet"
    pl.scan_parquet(sorted(parts.glob("*.parquet"))).sink_parquet(requests)
    facts = Facts(origin(), len(request.world.endpoints), request.seeds, request.target, loads)
    text = markdown(results, facts)
    pictures = {f"{trace}.png": trace_png(results, trace, requests) for trace in results.traces}
    for name, data in pictures.items():
        (folder / name).write_bytes(data)
    (folder / "report.md").write_text(text, encoding="utf-8")
    (folder / "report.html").write_text(page(text, pictures), encoding="utf-8")
    (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcomes), indent=1) + b"\n")
    return text
