"""All measurements of the section, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from fairlead.bench.bodies import KINDS
from fairlead.bench.tables import crowd, memory, prefixes, watches


class Effort(msgspec.Struct, frozen=True):
    """How much is measured. `weighed` is how many blocks and how many sessions; `sessions` are those of the crowd."""

    cell_s: float
    most_repeats: int
    watched_s: float
    weighed: int = 1_000_000
    endpoints: int = crowd.ENDPOINTS
    sessions: int = crowd.SESSIONS

    def steps(self) -> int:
        decisions = len(KINDS) * len(crowd.TURNS)
        return len(prefixes.cells()) + decisions + len(memory.kinds(self.weighed)) + len(watches.ENDPOINTS)


class Tables(msgspec.Struct, frozen=True):
    endpoints: int  # of the crowd
    sessions: int
    prefixes: list[prefixes.PrefixCell]
    crowd: list[crowd.CrowdCell]
    memory: list[memory.Weight]
    watches: watches.Watches

    def failures(self) -> int:
        return self.watches.failures()


def measure(effort: Effort, seed: int, advance: Callable[[], None]) -> Tables:
    """Measure everything; `advance` is called after each of `effort.steps()` steps."""
    prefix_cells = []
    for prefix_cell in prefixes.measure(seed, effort.cell_s, effort.most_repeats):
        prefix_cells.append(prefix_cell)
        advance()
    crowd_cells = []
    for crowd_cell in crowd.measure(
        seed, effort.cell_s, effort.most_repeats, endpoints=effort.endpoints, sessions=effort.sessions
    ):
        crowd_cells.append(crowd_cell)
        advance()
    weights, watched = asyncio.run(_in_processes(effort, advance))
    return Tables(effort.endpoints, effort.sessions, prefix_cells, crowd_cells, weights, watched)


async def _in_processes(effort: Effort, advance: Callable[[], None]) -> tuple[list[memory.Weight], watches.Watches]:
    weights = []
    for kind in memory.kinds(effort.weighed):
        weights.append(await memory.measure(kind))
        advance()
    return weights, await watches.measure(effort.watched_s, advance)
