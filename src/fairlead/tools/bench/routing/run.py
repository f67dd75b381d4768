"""One run of the benchmark: every policy on the same sessions, repeat by repeat, with a progress bar for who waits."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from fairlead.tools.bench.machine import Machine, this_machine
from fairlead.tools.bench.routing.agents import ask_all
from fairlead.tools.bench.routing.outcome import Outcome, outcome
from fairlead.tools.bench.routing.pool import ENGINES, MODEL, Engines, running_engines, running_front
from fairlead.tools.bench.routing.sessions import AGENTS, CHATS, Regime, make_sessions
from fairlead.tools.study import progress_bar

OURS: Final = "fairlead"


class Cell(msgspec.Struct, frozen=True):
    """A regime at a load: so many clients at a time, which have so many sessions to go through."""

    name: str
    regime: Regime
    clients: int
    sessions: int


class Plan(msgspec.Struct, frozen=True):
    cells: tuple[Cell, ...]
    policies: tuple[str, ...]
    repeats: int
    seed: int

    def runs(self) -> int:
        return len(self.cells) * len(self.policies) * self.repeats


class Results(msgspec.Struct, frozen=True):
    """All of one run of the benchmark."""

    command: str
    plan: Plan
    machine: Machine
    load_average_after: float
    outcomes: list[Outcome]

    def of(self, cell: str, policy: str) -> list[Outcome]:
        """One for each repeat, in their order."""
        return [o for o in self.outcomes if (o.cell, o.policy) == (cell, policy)]


FULL: Final = (
    Cell("agents, moderate load", AGENTS, clients=18, sessions=50),
    Cell("agents, near saturation", AGENTS, clients=48, sessions=80),
    Cell("chats, near saturation", CHATS, clients=56, sessions=110),
)
QUICK: Final = (Cell("agents, a short look", AGENTS, clients=20, sessions=24),)


def run(command: str, plan: Plan) -> Results:
    """Raises NotMeasuredError when a request fails, and ChildError when a part does not start."""
    machine = this_machine()
    with progress_bar("") as progress:
        task = progress.add_task("runs", total=plan.runs())
        outcomes = uvloop.run(_measure(plan, lambda: progress.advance(task)))
    return Results(command, plan, machine, os.getloadavg()[0], outcomes)


def order(policies: Sequence[str], repeat: int, repeats: int) -> list[str]:
    """Each repeat begins elsewhere in the list, so that no policy always has the same place in time."""
    start = repeat * len(policies) // repeats
    return [*policies[start:], *policies[:start]]


async def _measure(plan: Plan, advance: Callable[[], None]) -> list[Outcome]:
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="fairlead-routing-") as name:
        folder = Path(name)
        async with running_engines(folder) as engines:
            for repeat in range(plan.repeats):
                for cell in plan.cells:
                    for policy in order(plan.policies, repeat, plan.repeats):
                        outcomes.append(await _one(engines, cell, policy, repeat, plan.seed, folder))
                        advance()
    return outcomes


async def _one(engines: Engines, cell: Cell, policy: str, repeat: int, seed: int, folder: Path) -> Outcome:
    sessions = make_sessions(cell.regime, cell.sessions, f"{seed}-{repeat}")
    await engines.forget_prompts()
    async with running_front(engines, policy, folder) as url:
        started_s = time.perf_counter()
        answers = await ask_all(url, MODEL, sessions, cell.clients)
        duration_s = time.perf_counter() - started_s
    return outcome(cell.name, policy, repeat, answers, duration_s, ENGINES)
