"""Choose the weights of `fairlead` by leaving one trace out, over all traces and all worlds of the replay.

    python benchmarks/papers/weights.py            # all runs; goes on with those that are kept
    python benchmarks/papers/weights.py --report   # from the kept runs only

Writes benchmarks/results/papers/weights.md. Runs are kept in traffic/runs.jsonl there, with their commit: remove it to
begin anew. For each trace the weights are chosen by the geometric mean over the columns of all *other* traces, in all
WORLDS; `traffic.py` judges that trace with them. The first of the grid, which is the physical one, stays unless another
is better by more than chance: by SURE standard errors of the mean over cases. Without that rule the best of the grid
was 0.8 % better on the seeds that it was chosen on, and 0.2 % on others, where it was 0.8 % worse in plain worlds.
The default is the choice over all traces, which has no trace left to be judged on: what it is worth is what the others
are worth that were left out.
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


def weights(crowd: float, queue: float, stall: float, evict: float, answer: float) -> str:
    return (
        f"crowd_weight={crowd:g}:queue_weight={queue:g}:stall_weight={stall:g}:evict_weight={evict:g}"
        f":least_answer_tokens={answer:g}"
    )


GRID = (
    weights(1, 1, 0.05, 0, 128),
    weights(1, 1, 1, 0, 128),
    weights(2, 1, 0.05, 0, 128),
    weights(2, 1.5, 0.05, 0, 128),
    weights(2, 1.5, 0.15, 0, 128),
    weights(2, 1.5, 0.5, 0, 128),
)
ABOUT = {
    "rtt_weight": "1, physical: a millisecond is a millisecond; not chosen by runs",
    "batch_weight": "2, by argument: a request slows those that it joins as much as they slow it; not chosen by runs",
    "tie_ms": "2, above the noise of a probe in one data centre; not chosen by runs",
    "retry_penalty": "1000, by argument: at temperature 0 a model that failed fails again; not chosen by runs",
    "crowd_weight": "chosen here",
    "queue_weight": "chosen here; 1 is physical for a request's own first token: what waits is computed before it",
    "stall_weight": "chosen here",
    "evict_weight": "chosen here",
    "least_answer_tokens": "chosen here",
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
    if not over:
        return None
    gains = {setting: [log(_over_first(runs, setting, [case])) for case in over] for setting in GRID}
    best = min(GRID, key=lambda setting: fmean(gains[setting]))
    is_sure = len(over) > 1 and fmean(gains[best]) < -SURE * stdev(gains[best]) / sqrt(len(over))
    return best if is_sure else GRID[0]


def known(runs: Runs) -> list[Case]:
    """The cases of which all runs are there."""
    return [case for case in cases() if all(score(runs, setting, [case]) is not None for setting in GRID)]


def _over_first(runs: Runs, setting: str, over: list[Case]) -> float:
    return (score(runs, setting, over) or 0.0) / (score(runs, GRID[0], over) or 1.0)


def _with_error(runs: Runs, setting: str, over: list[Case]) -> str:
    mean = _over_first(runs, setting, over)
    if setting == GRID[0] or len(over) < 2:
        return f"{mean:.3f}"
    error = stdev(log(_over_first(runs, setting, [case])) for case in over) / sqrt(len(over))
    return f"{mean:.3f} ± {mean * error:.3f}"


def make(runs: Runs, wanted: Sequence[Case]) -> None:
    runs.make(wanted, [f"fairlead:{setting}" for setting in GRID], SEEDS)


def report(runs: Runs) -> str:
    over = known(runs)
    best = chosen(runs, None)
    worlds = [world for world in WORLDS if any(case.world == world for case in over)]
    sizes = ", ".join(
        f"{trace.name} {found.requests:,}"
        for trace in TRACES
        if (found := runs.get(Case(trace.name, "plain", LOADS[trace.name]), f"fairlead:{GRID[0]}", SEEDS[0]))
    )
    rows = []
    for setting in GRID:
        cells = [_over_first(runs, setting, [case for case in over if case.world == world]) for world in worlds]
        rows.append((f"`{setting}`", _with_error(runs, setting, over), *(f"{cell:.3f}" for cell in cells)))
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
                "For each trace, the weights that were best on average on all the others, if by more than "
                f"{SURE:g} standard errors of the mean over cases; else the first of the grid, which is the physical "
                "one. `traffic.md` judges it with these, and the defaults are the last row.",
                table(
                    ("Judged on", "Weights chosen on the others"),
                    [(trace.name, f"`{chosen(runs, trace.name)}`") for trace in TRACES]
                    + [("none left out: the default", f"`{best}`")],
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
