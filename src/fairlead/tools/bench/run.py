"""One run of the benchmark, with a progress bar for whoever waits."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import msgspec

from fairlead.serving.memory import keep_freed_memory
from fairlead.tools.bench import decision, through_envoy
from fairlead.tools.bench.machine import this_machine
from fairlead.tools.bench.report import Report
from fairlead.tools.bench.tables import run as tables
from fairlead.tools.study import progress_bar


class Effort(msgspec.Struct, frozen=True):
    """How much is measured in each part."""

    cell_s: float
    most_repeats: int
    tables: tables.Effort
    envoy: through_envoy.Effort


FULL: Final = Effort(
    cell_s=0.5,
    most_repeats=500,
    tables=tables.Effort(cell_s=1.0, most_repeats=500, watched_s=20.0),
    envoy=through_envoy.Effort(rounds=5, saturated_s=2.5, steady_s=5.0),
)
QUICK: Final = Effort(
    cell_s=0.1,
    most_repeats=60,
    tables=tables.Effort(cell_s=0.2, most_repeats=100, watched_s=5.0),
    envoy=through_envoy.Effort(rounds=2, saturated_s=1.0, steady_s=1.5),
)


def run(command: str, seed: int, effort: Effort, *, has_decision: bool, has_tables: bool, has_envoy: bool) -> Report:
    """Measure the parts that are asked for."""
    machine = this_machine()
    cells: list[decision.Cell] = []
    weighed, measured = None, None
    with progress_bar("") as progress:
        if has_decision or has_tables:
            keep_freed_memory()  # as `serve` does
        if has_decision:
            task = progress.add_task("decisions", total=len(decision.cells()))
            for cell in decision.measure(seed, effort.cell_s, effort.most_repeats):
                cells.append(cell)
                progress.advance(task)
        if has_tables:
            task = progress.add_task("tables and watches", total=effort.tables.steps())
            weighed = tables.measure(effort.tables, seed, lambda: progress.advance(task))
        if has_envoy:
            task = progress.add_task("through Envoy", total=effort.envoy.runs())
            measured = asyncio.run(through_envoy.measure(effort.envoy, seed, lambda: progress.advance(task)))
    return Report(command, seed, machine, os.getloadavg()[0], cells, weighed, measured)
