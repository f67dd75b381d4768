"""Traces, policies and seeds in parallel processes: each policy gets the same arrivals for the same seed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from fairlead.errors import UserError
from fairlead.replay.claude_code import Sampling
from fairlead.replay.contest import Contestant
from fairlead.replay.rows import Rows, Summary, Target, summarise
from fairlead.replay.traces import read_trace
from fairlead.replay.workload import Workload
from fairlead.replay.world import World

_TELL_S: Final = 0.5
_TELL_REQUESTS: Final = 500


class Traffic(msgspec.Struct, frozen=True):
    """A trace and what is made of it: which part, and how often its conversations start."""

    path: str
    sampling: Sampling = Sampling()
    from_s: float = 0.0
    to_s: float = float("inf")
    faster: float = 1.0


class Plan(msgspec.Struct, frozen=True):
    """Everything that decides the result, bit for bit."""

    traffics: tuple[Traffic, ...]
    contestants: tuple[Contestant, ...]
    seeds: tuple[int, ...]
    world: World
    target: Target = Target()


class Outcome(msgspec.Struct, frozen=True):
    """One policy on one trace with one seed."""

    trace: str
    policy: str
    seed: int
    notes: tuple[str, ...]
    summary: Summary


class _Job(msgspec.Struct, frozen=True):
    traffic: Traffic
    seed: int
    contestant: Contestant
    world: World
    target: Target
    rows: str | None  # where its rows go


def workload_of(traffic: Traffic, seed: int) -> Workload:
    """Raises UserError for a trace that cannot be replayed."""
    workload = read_trace(Path(traffic.path), traffic.sampling, seed)
    if traffic.from_s > 0 or traffic.to_s != float("inf"):
        workload = workload.between(traffic.from_s, traffic.to_s)
        if not workload.conversations:
            raise UserError(f"{traffic.path}: nothing starts from {traffic.from_s:g} s to {traffic.to_s:g} s")
    return workload if traffic.faster == 1.0 else workload.faster(traffic.faster)


def run(
    plan: Plan,
    *,
    jobs: int | None = None,
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """Outcomes in the order of traces, seeds and policies. Rows go to `folder`, one Parquet file a run.

    `jobs` None is one process a core, 1 is this process alone. `progress` hears of requests as they end. Raises
    UserError when a run fails.
    """
    each = product(plan.traffics, plan.seeds, plan.contestants)
    work = [
        _Job(*what, plan.world, plan.target, None if folder is None else str(folder / f"{number:05}.parquet"))
        for number, what in enumerate(each)
    ]
    jobs = min(jobs or os.cpu_count() or 1, len(work))
    if jobs == 1:
        return [_run(job, progress or _unheard) for job in work]
    return _run_all(work, jobs, progress or _unheard)


def _unheard(_: int) -> None:
    return


def _run_all(work: Sequence[_Job], jobs: int, progress: Callable[[int], None]) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of whoever shows progress
    done = context.Value("q", 0)
    told = 0
    with ProcessPoolExecutor(jobs, context, _share, (done,)) as pool:
        waiting: set[Future[Outcome]] = set()
        futures = [pool.submit(_run_shared, job) for job in work]
        waiting.update(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, _TELL_S, FIRST_COMPLETED)
                for future in ended:
                    future.result()
                progress(done.value - told)
                told = done.value
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


_done: Any = None  # the counter that worker processes share with the one that shows progress


def _share(done: Any) -> None:
    global _done
    _done = done


def _run_shared(job: _Job) -> Outcome:
    def progress(requests: int) -> None:
        with _done.get_lock():
            _done.value += requests

    return _run(job, progress)


def _run(job: _Job, progress: Callable[[int], None]) -> Outcome:
    workload = workload_of(job.traffic, job.seed)
    rows = Rows()
    pending = 0

    def tell(requests: int) -> None:
        nonlocal pending
        pending += requests
        if pending >= _TELL_REQUESTS:
            progress(pending)
            pending = 0

    try:
        simulation = job.contestant.simulation(job.world, workload, job.seed, rows.add, tell)
        simulation.run()
    except UserError as error:
        raise UserError(f"{job.contestant.text} on {workload.name}: {error}") from None
    progress(pending)
    frame = rows.frame()
    if frame.filter(pl.col("endpoint") >= 0).is_empty():
        raise UserError(f"{workload.name}: no engine of this world can take any of its prompts; cap them")
    if job.rows is not None:
        named = {"trace": workload.name, "policy": job.contestant.text, "seed": job.seed}
        frame.with_columns(pl.lit(value).alias(name) for name, value in named.items()).write_parquet(job.rows)
    summary = summarise(
        frame, simulation.counts, recorded_ms=workload.span_ms, engines=len(job.world.endpoints), target=job.target
    )
    return Outcome(workload.name, job.contestant.text, job.seed, workload.notes, summary)
