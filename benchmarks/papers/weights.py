"""Choose the weights of `fairlead` by leaving one trace out, over all traces and all worlds of the replay.

    python benchmarks/papers/weights.py            # all runs; goes on with those that are kept
    python benchmarks/papers/weights.py --report   # from the kept runs only

Writes benchmarks/results/papers/weights.md. Runs are kept in traffic/runs.jsonl there, with their commit: remove it to
begin anew. For each trace the weights are those with the least geometric mean over the columns of all *other* traces,
in all WORLDS; `traffic.py` judges that trace with them. The default is the first of the grid, unless another is better
over all traces by more than chance. No trace is left to judge it: grids before this one chose the first on all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, stdev

from _contest import COLUMNS, KEPT, TRACES, Case, Runs

from fairlead.tools.bench.markdown import table
from fairlead.tools.origin import date
from fairlead.tools.replay.worlds import CHANGES

OUT = Path("benchmarks/results/papers/weights.md")
SEEDS = (100, 101, 102)  # `traffic.py` has others
LOADS = {"mooncake": 0.55, "agents": 1.2, "hot-agents": 1.2, "azure": 0.7, "short": 0.7}
WORLDS = tuple(CHANGES)
SURE = 2.0


def weights(behind: float, stall: float, queue: float = 1.0) -> str:
    return f"behind_weight={behind:g}:stall_weight={stall:g}:queue_weight={queue:g}"


GRID = (
    weights(1, 0.2),
    weights(0, 0.05),
    weights(1, 0.05),
    weights(1, 0.5),
    weights(1, 1),
    weights(2, 0.2),
    weights(2, 0.5),
    weights(2, 0.5, queue=1.5),
    weights(4, 0.2),
)
ABOUT = {
    "rtt_weight": "1, physical: a millisecond is a millisecond; not chosen by runs",
    "batch_weight": "2, by argument: a request slows those that it joins as much as they slow it; not chosen by runs",
    "tie_ms": "2, above the noise of a probe in one data centre; not chosen by runs",
    "retry_penalty": "1,000,000, by argument: at temperature 0 a model that failed fails again; not chosen by runs",
    "behind_weight": "chosen here; 1 is physical while arrivals keep pace: as many come behind as stand before",
    "crowd_weight": "1, of earlier grids (docs/weights.md); not chosen here",
    "queue_weight": "chosen here; 1 is physical for a request's own first token: what waits is computed before it",
    "stall_weight": "chosen here; 1 is physical",
    "evict_weight": "0, of earlier grids (docs/weights.md); not chosen here",
    "least_answer_tokens": "128, of earlier grids; not chosen here",
}


def cases(traces: tuple[str, ...] = tuple(LOADS)) -> list[Case]:
    return [Case(trace, world, LOADS[trace]) for world in WORLDS for trace in traces]


def score(runs: Runs, setting: str, over: list[Case]) -> float | None:
    """The geometric mean of times in ms over all columns of these cases; None where a run is missing."""
    times = [runs.mean(case, f"fairlead:{setting}", column, SEEDS) for case in over for column in COLUMNS]
    if not times or any(time is None for time in times):
        return None
    return exp(fmean(log(time) for time in times if time is not None))


def chosen(runs: Runs, left_out: str | None) -> str | None:
    """The weights for `left_out`, from all other traces; None while runs are missing."""
    over = [case for case in known(runs) if case.trace != left_out]
    return min(GRID, key=lambda setting: fmean(_gains(runs, setting, over))) if over else None


def default(runs: Runs) -> str | None:
    """The first of the grid, unless another is better by SURE standard errors; None while runs are missing."""
    best, over = chosen(runs, None), known(runs)
    if best is None or best == GRID[0]:
        return best
    gains = _gains(runs, best, over)
    return best if len(over) > 1 and fmean(gains) < -SURE * _error(gains) else GRID[0]


def known(runs: Runs) -> list[Case]:
    """The cases of which all runs are there."""
    return [case for case in cases() if all(score(runs, setting, [case]) is not None for setting in GRID)]


def _gains(runs: Runs, setting: str, over: list[Case]) -> list[float]:
    """The log of its times over those of the first of the grid, for each case."""
    return [log((score(runs, setting, [case]) or 0.0) / (score(runs, GRID[0], [case]) or 1.0)) for case in over]


def _error(gains: Sequence[float]) -> float:
    """Of the mean over cases."""
    return stdev(gains) / sqrt(len(gains))


def _with_error(gains: Sequence[float]) -> str:
    return f"{exp(fmean(gains)):.3f}" + (f" ± {exp(fmean(gains)) * _error(gains):.3f}" if any(gains) else "")


def make(runs: Runs, wanted: Sequence[Case]) -> None:
    runs.make(wanted, [f"fairlead:{setting}" for setting in GRID], SEEDS)


def report(runs: Runs) -> str:
    over = known(runs)
    worlds = [world for world in WORLDS if any(case.world == world for case in over)]
    sizes = ", ".join(
        f"{trace.name} {found.requests:,}"
        for trace in TRACES
        if (found := runs.get(Case(trace.name, "plain", LOADS[trace.name]), f"fairlead:{GRID[0]}", SEEDS[0]))
    )
    rows = []
    for setting in GRID:
        gains = [_gains(runs, setting, [case for case in over if case.world == world]) for world in worlds]
        means = [f"{exp(fmean(each)):.3f}" for each in gains]
        rows.append((f"`{setting}`", _with_error([gain for each in gains for gain in each]), *means))
    return (
        "\n\n".join(
            (
                "# How the weights of `fairlead` were chosen",
                f"- Command: `python benchmarks/papers/weights.py`\n- Commits: {runs.commits}; written {date()}\n"
                f"- Seeds: {', '.join(map(str, SEEDS))}; requests: {sizes}\n"
                f"- Cases that were run: {len(over)} of {len(cases())}",
                "## Each weight",
                table(("Weight", "How"), [(f"`{name}`", how) for name, how in ABOUT.items()]),
                "## Leave one trace out",
                "For each trace, the weights that were best on average on all the others: `traffic.md` judges it with "
                f"these. The default is the first of the grid, unless another is better by {SURE:g} standard errors.",
                table(
                    ("Judged on", "Weights chosen on the others"),
                    [(trace.name, f"`{chosen(runs, trace.name)}`") for trace in TRACES]
                    + [("none left out", f"`{chosen(runs, None)}`"), ("the default", f"`{default(runs)}`")],
                ),
                "## The grid",
                "The geometric mean of TTFT p95, E2E p95 and E2E mean over all traces of each world, over that of the "
                "first row; over all of them with the standard error of that mean over cases.",
                table(("Weights", "All", *worlds), rows),
            )
        )
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="as the report names them, such as 'azure, worst, 0.7'; all if none")
    parser.add_argument("--report", action="store_true", help="run nothing")
    asked = parser.parse_args()
    runs = Runs(KEPT)
    if not asked.report:
        make(runs, [case for case in cases() if not asked.cases or str(case) in asked.cases])
    OUT.write_text(report(runs), encoding="utf-8")
    print(OUT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
