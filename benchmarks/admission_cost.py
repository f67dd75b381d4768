"""What the `admission` section costs where nothing has to wait: `python benchmarks/admission_cost.py`.

The same load, in turns, on sidecars with the section and without, each behind an Envoy of its own: 100 requests a
second of 1 KB, which is far from what either can serve, and as many as they can. Two have it not: what those differ by
is the machine's noise. Writes benchmarks/results/admission_cost.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from fairlead.tools.bench.machine import Machine, machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.through_envoy import CONNECTIONS, Effort, Run, Shape
from fairlead.tools.bench.turns import in_turns, start
from fairlead.tools.estimates import spread

OFF: Final = "off"
OFF_AGAIN: Final = "off, a second sidecar"
ON: Final = "on"
SHAPES: Final[tuple[Shape, ...]] = ("steady", "1 KB", "64 KB")
_ADMISSION: Final = {"admission": {"priorities": {"chat": {"level": 10}, "batch": {"level": -10}}}}
_RESULTS: Final = Path(__file__).parent / "results" / "admission_cost.md"


async def measure(effort: Effort, seed: int) -> list[Run]:
    async with AsyncExitStack() as stack:
        up = await start(stack, {OFF: {}, OFF_AGAIN: {}, ON: _ADMISSION})
        return await in_turns(up, SHAPES, effort, seed, lambda: print(".", end="", flush=True))


def text(facts: str, runs: Sequence[Run]) -> str:
    by_key = {(run.variant, run.shape, run.round): run for run in runs}
    rounds = range(max(run.round for run in runs) + 1)
    rows = []
    for shape in SHAPES:
        off = [by_key[OFF, shape, number] for number in rounds]
        for name in (OFF, OFF_AGAIN, ON):
            own = [by_key[name, shape, number] for number in rounds]
            pairs = list(zip(own, off, strict=True))
            rows.append(
                (
                    "100 a second" if shape == "steady" else f"{shape}, saturated",
                    name,
                    spread([run.requests_per_s for run in own]).text(),
                    spread([run.p50_us for run in own]).text(),
                    spread([run.sidecar_cpu_us for run in own]).text(),
                    "" if name == OFF else spread([a.p50_us - b.p50_us for a, b in pairs]).text(1, "+"),
                    "" if name == OFF else spread([a.sidecar_cpu_us - b.sidecar_cpu_us for a, b in pairs]).text(1, "+"),
                )
            )
    heads = ("Load", "Admission", "Requests/s", "p50 µs", "Sidecar CPU µs", "p50 more than off", "CPU more than off")
    failed = sum(run.errors for run in runs)
    return (
        f"# What admission costs where nothing waits\n\n{facts}\n\n"
        f"Medians of {len(rounds)} rounds with their least and most, {CONNECTIONS} connections; differences are made "
        f"within a round. *{OFF_AGAIN}* has nothing on that *{OFF}* has not: what it differs by is noise. CPU is of a "
        f"request.\n\n{table(heads, rows)}\n\n"
        f"Requests: {sum(run.requests for run in runs):,}, failed: {failed}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load in each round")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    machine: Machine = this_machine()
    effort = Effort(arguments.rounds, arguments.seconds, arguments.seconds)
    runs = asyncio.run(measure(effort, arguments.seed))
    command = " ".join(["python", "benchmarks/admission_cost.py", *sys.argv[1:]])
    _RESULTS.write_text(text(machine_facts(command, arguments.seed, machine, os.getloadavg()[0]), runs), "utf-8")
    print(f"\n{_RESULTS}")
    sys.exit(any(run.errors for run in runs))


if __name__ == "__main__":
    main()
