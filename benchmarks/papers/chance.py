"""How far behind the best of twelve a policy falls by chance alone.

    python benchmarks/papers/chance.py            # all runs: half an hour on one core; goes on with those that are kept
    python benchmarks/papers/chance.py --report   # from the kept runs only

`traffic.py` compares `fairlead` with the best of twelve baselines in each column, chosen after the fact: some of that
one's lead is luck. Here the twelve are copies of `fairlead`, alike but for a queue weight that differs by at most
1.2 %, so that a run takes another course and no copy is better than another. What the best of them seems to lead by is
what chance does to a policy that is as good as the best. Writes benchmarks/results/papers/chance.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Final

import traffic
from _contest import COLUMNS, HEADINGS, KEPT, Case, Runs

from fairlead.tools.bench.markdown import table
from fairlead.tools.origin import date

OUT = Path("benchmarks/results/papers/chance.md")
COPIES: Final = tuple(f"fairlead:queue_weight={1 + 0.002 * step:g}" for step in range(-6, 7))
WORLDS: Final = ("plain", "mixed", "worst")
CASES: Final = tuple(case for case in traffic.CASES if case.world in WORLDS)

Column = tuple[Case, str]


def columns(runs: Runs, seeds: Sequence[int]) -> dict[Column, list[float]]:
    """The times in ms of all copies, of columns of which all were run."""
    found: dict[Column, list[float]] = {}
    for case in CASES:
        for column in COLUMNS:
            times = [runs.mean(case, copy, column, seeds) for copy in COPIES]
            known = [time for time in times if time is not None]
            if len(known) == len(COPIES):
                found[case, column] = known
    return found


def behind(times: Mapping[Column, Sequence[float]], copy: int) -> dict[Column, float]:
    """This copy over the best of the others."""
    return {
        column: each[copy] / min(time for place, time in enumerate(each) if place != copy)
        for column, each in times.items()
    }


def rows(times: Mapping[Column, Sequence[float]]) -> Iterator[tuple[str, ...]]:
    groups = {world: {column: each for column, each in times.items() if column[0].world == world} for world in WORLDS}
    for name, group in {"all of these": dict(times), **groups}.items():
        if not group:
            continue
        ratios = [behind(group, copy) for copy in range(len(COPIES))]
        means = sorted(exp(fmean(map(log, each.values()))) for each in ratios)
        worsts = sorted(max(each.values()) for each in ratios)
        within = [fmean(ratio <= 1.08 for ratio in each.values()) for each in ratios]
        yield (
            name,
            str(len(group)),
            f"{fmean(means):.3f} ({means[0]:.3f} to {means[-1]:.3f})",
            f"{fmean(worsts):.2f} ({worsts[0]:.2f} to {worsts[-1]:.2f})",
            f"{1e2 * fmean(within):.0f} %",
        )


def widest(times: Mapping[Column, Sequence[float]]) -> Iterator[tuple[str, ...]]:
    """Columns in which copies differ most."""
    usual = {column: exp(fmean(log(behind({column: each}, copy)[column]) for copy in range(len(COPIES))))
             for column, each in times.items()}  # fmt: skip
    for column in sorted(usual, key=usual.__getitem__, reverse=True)[:10]:
        case, name = column
        yield str(case), HEADINGS[name], f"{usual[column]:.2f}"


def page(runs: Runs, seeds: Sequence[int]) -> str:
    times = columns(runs, seeds)
    heads = ("Worlds", "Columns", "Geometric mean", "Worst column", "Columns within 8 %")
    return (
        "\n\n".join(
            (
                "# What chance does to a comparison with the best of twelve",
                f"- Command: `python benchmarks/papers/chance.py --seeds {len(seeds)}`\n"
                f"- Commits: {runs.commits}; written {date()}\n"
                f"- Seeds: {', '.join(map(str, seeds))}; cases as in [traffic.md](traffic.md): "
                f"{len({case for case, _ in times})} of {len(CASES)} were run\n"
                "- Thirteen copies of `fairlead`, default weights but for `queue_weight`: 0.988, 0.990 and so on "
                "to 1.012",
                "Each copy in turn over the best of the other twelve in each column, chosen after the fact: the mean "
                "over the thirteen, the least and the most. The copies are equally good, so 1.000 would be the truth, "
                "and what is above it is chance. A policy that is exactly as good as each of twelve baselines "
                "everywhere can expect these figures in traffic.md.",
                table(heads, list(rows(times))),
                "## The columns that chance moves most",
                "A copy over the best of the other twelve, the geometric mean over all thirteen.",
                table(("Case", "Time", "Ratio"), list(widest(times))),
            )
        )
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on, as `traffic.py`")
    parser.add_argument("--report", action="store_true", help="run nothing")
    asked = parser.parse_args()
    runs, seeds = Runs(KEPT), tuple(range(asked.seeds))
    if not asked.report:
        runs.make(CASES, COPIES, seeds)
    OUT.write_text(page(runs, seeds), encoding="utf-8")
    print(OUT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
