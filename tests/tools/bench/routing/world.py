"""Results as a run would give them, without running one."""

from __future__ import annotations

from fairlead.tools.bench.machine import Machine
from fairlead.tools.bench.routing.outcome import Outcome
from fairlead.tools.bench.routing.run import Cell, Plan, Results
from fairlead.tools.bench.routing.sessions import AGENTS

CELL = Cell("agents, busy", AGENTS, clients=8, sessions=20)


def results(ttft_p95_ms: dict[str, list[float]]) -> Results:
    """One cell; the policies are the keys, the repeats the values."""
    outcomes = [
        Outcome(
            cell=CELL.name,
            policy=policy,
            repeat=repeat,
            requests=100 + repeat,
            duration_s=2.0,
            cached_share=0.8 + repeat / 100,
            ttft_p50_ms=ms / 2,
            ttft_p95_ms=ms,
            e2e_p50_ms=ms + 100,
            e2e_p95_ms=ms + 300,
            imbalance=1.2 + repeat / 10,
        )
        for policy, times in ttft_p95_ms.items()
        for repeat, ms in enumerate(times)
    ]
    repeats = len(next(iter(ttft_p95_ms.values())))
    machine = Machine("2030-01-01 00:00 UTC", "abc", "a CPU", 2, "Linux 6", "3.11", "1.40.0", 0.5)
    return Results("fairlead bench-routing", Plan((CELL,), tuple(ttft_p95_ms), repeats, 7), machine, 0.75, outcomes)
