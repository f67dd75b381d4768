"""Traces, policies and seeds in parallel processes: each policy gets the same arrivals for the same seed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from fairlead.errors import UserError
from fairlead.tools.replay.claude_code import Sampling
from fairlead.tools.replay.policy_spec import PolicySpec, faster_for
from fairlead.tools.replay.rows import LatencyTarget, Rows, RunSummary, summarise
from fairlead.tools.replay.traces import ONLY_THE_FIRST, read_trace
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World
from fairlead.tools.study import worker_processes

_REPORT_S: Final = 0.5
_REPORT_REQUESTS: Final = 500


class Traffic(msgspec.Struct, frozen=True):
    """A trace, the part of it to use, and how much to speed it up."""

    path: str
    sampling: Sampling = Sampling()
    from_s: float = 0.0
    to_s: float = float("inf")
    faster: float = 1.0


class ReplayPlan(msgspec.Struct, frozen=True):
    """Everything that decides the result, bit for bit."""

    traffics: tuple[Traffic, ...]
    specs: tuple[PolicySpec, ...]
    seeds: tuple[int, ...]
    world: World
    target: LatencyTarget = LatencyTarget()


class RunResult(msgspec.Struct, frozen=True):
    """One policy on one trace with one seed."""

    trace: str
    policy: str
    seed: int
    notes: tuple[str, ...]
    summary: RunSummary


class _ReplayJob(msgspec.Struct, frozen=True):
    traffic: Traffic
    seed: int
    spec: PolicySpec
    world: World
    target: LatencyTarget
    rows: str | None  # where its rows go


def workload_of(traffic: Traffic, seed: int) -> Workload:
    """Raises UserError for a trace that cannot be replayed."""
    workload = whole = read_trace(traffic.path, traffic.sampling, seed, from_s=traffic.from_s, to_s=traffic.to_s)
    if traffic.from_s > 0 or traffic.to_s != float("inf"):
        workload = whole.between(traffic.from_s, traffic.to_s)
        if not workload.conversations:
            cut = f"; {ONLY_THE_FIRST}" if ONLY_THE_FIRST in whole.notes else ""
            raise UserError(f"{traffic.path}: nothing starts from {traffic.from_s:g} s to {traffic.to_s:g} s{cut}")
    return workload if traffic.faster == 1.0 else workload.faster(traffic.faster)


def at_load(
    load: float,
    traffic: Traffic,
    workload: Workload,
    world: World,
    references: Sequence[PolicySpec],
    progress: Callable[[int], None] | None = None,
) -> tuple[Traffic, str]:
    """`traffic`, from which `workload` was read, at `load` times what the best of `references` serves; and a note."""
    factors = {each.text: faster_for(load, world, workload, each, progress) for each in references}
    best = max(factors, key=factors.__getitem__)
    note = (
        f"{workload.name}: {load:g} of what `{best}` can serve, conversations start {factors[best]:.3g} times as often "
        "as recorded"
    )
    others = ", ".join(f"`{name}` {factor / factors[best]:.2f}" for name, factor in factors.items() if name != best)
    if others:
        note += f"; of what it can serve, others can: {others}"
    return msgspec.structs.replace(traffic, faster=factors[best]), note


def run(
    plan: ReplayPlan,
    *,
    jobs: int | None = None,
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[RunResult]:
    """Results in the order of traces, seeds and policies. Rows go to `folder`, one Parquet file a run.

    `jobs` None is one process a core, 1 is this process alone. `progress` is called with the number of requests that
    have ended since the last call. Raises UserError when a run fails.
    """
    each = product(plan.traffics, plan.seeds, plan.specs)
    work = [
        _ReplayJob(*what, plan.world, plan.target, None if folder is None else str(folder / f"{number:05}.parquet"))
        for number, what in enumerate(each)
    ]
    jobs = min(jobs or os.cpu_count() or 1, len(work))
    if jobs == 1:
        return [_run(job, progress or _no_progress) for job in work]
    return _run_all(work, jobs, progress or _no_progress)


def _no_progress(_: int) -> None:
    return


def _run_all(work: Sequence[_ReplayJob], jobs: int, progress: Callable[[int], None]) -> list[RunResult]:
    done = multiprocessing.get_context("spawn").Value("q", 0)
    reported = 0
    with worker_processes(jobs, _share, (done,)) as pool:
        waiting: set[Future[RunResult]] = set()
        futures = [pool.submit(_run_shared, job) for job in work]
        waiting.update(futures)
        while waiting:
            ended, waiting = wait(waiting, _REPORT_S, FIRST_COMPLETED)
            for future in ended:
                future.result()
            progress(done.value - reported)
            reported = done.value
        return [future.result() for future in futures]


_done: Any = None  # the counter that worker processes share with the one that shows progress


def _share(done: Any) -> None:
    global _done
    _done = done


def _run_shared(job: _ReplayJob) -> RunResult:
    def progress(requests: int) -> None:
        with _done.get_lock():
            _done.value += requests

    return _run(job, progress)


def _run(job: _ReplayJob, progress: Callable[[int], None]) -> RunResult:
    workload = workload_of(job.traffic, job.seed)
    rows = Rows()
    pending = 0

    def report(requests: int) -> None:
        nonlocal pending
        pending += requests
        if pending >= _REPORT_REQUESTS:
            progress(pending)
            pending = 0

    try:
        simulation = job.spec.simulation(job.world, workload, job.seed, rows.add, report)
        simulation.run()
    except UserError as error:
        raise UserError(f"{job.spec.text} on {workload.name}: {error}") from None
    progress(pending)
    frame = rows.frame()
    if frame.filter(pl.col("endpoint") >= 0).is_empty():
        raise UserError(f"{workload.name}: no engine of this world can take any of its prompts; cap them")
    if job.rows is not None:
        named = {"trace": workload.name, "policy": job.spec.text, "seed": job.seed}
        frame.with_columns(pl.lit(value).alias(name) for name, value in named.items()).write_parquet(job.rows)
    summary = summarise(
        frame, simulation.counts, recorded_ms=workload.span_ms, engines=len(job.world.endpoints), target=job.target
    )
    return RunResult(workload.name, job.spec.text, job.seed, workload.notes, summary)
