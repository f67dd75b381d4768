"""All measurements of the section, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from fairlead.tools.bench.bodies import KINDS
from fairlead.tools.bench.tables import many_endpoints, memory, prefixes, watches


class Effort(msgspec.Struct, frozen=True):
    """How much is measured. `weighed` blocks, and as many sessions; `sessions` are bound to the many endpoints."""

    cell_s: float
    most_repeats: int
    watched_s: float
    weighed: int = 1_000_000
    endpoints: int = many_endpoints.ENDPOINTS
    sessions: int = many_endpoints.SESSIONS

    def steps(self) -> int:
        decisions = len(KINDS) * len(many_endpoints.TURNS)
        return len(prefixes.cells()) + decisions + len(memory.kinds(self.weighed)) + len(watches.ENDPOINTS)


class Tables(msgspec.Struct, frozen=True):
    endpoints: int  # in the pool that decisions choose from
    sessions: int
    prefixes: list[prefixes.PrefixCell]
    many_endpoints: list[many_endpoints.ManyEndpointsCell]
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
    endpoint_cells = []
    for endpoint_cell in many_endpoints.measure(
        seed, effort.cell_s, effort.most_repeats, endpoints=effort.endpoints, sessions=effort.sessions
    ):
        endpoint_cells.append(endpoint_cell)
        advance()
    weights, watched = asyncio.run(_in_processes(effort, advance))
    return Tables(effort.endpoints, effort.sessions, prefix_cells, endpoint_cells, weights, watched)


async def _in_processes(effort: Effort, advance: Callable[[], None]) -> tuple[list[memory.Weight], watches.Watches]:
    weights = []
    for kind in memory.kinds(effort.weighed):
        weights.append(await memory.measure(kind))
        advance()
    return weights, await watches.measure(effort.watched_s, advance)
