"""`fairlead` against the rule that was best on other seeds, so that luck cannot choose its rival.

    python benchmarks/papers/held_out.py            # an hour for the plain world on two cores; can be interrupted
    python benchmarks/papers/held_out.py --report   # the page of the kept runs only

`traffic.py` finds the best of twelve rules in each column after the fact, so that one's time is partly luck
(`chance.py`). Here it is found on three seeds and judged on three others, and the other way round. A rule that is
judged so is ahead by what it is better, and by nothing else. The runs are kept with those of `traffic.py`. Writes
benchmarks/results/papers/held_out.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import traffic
import weights
from _contest import HEADINGS, KEPT, Case, Runs
from traffic import LEADING, OURS, Cell

from fairlead.tools.bench.markdown import table
from fairlead.tools.origin import date

OUT = Path("benchmarks/results/papers/held_out.md")
FIRST, OTHER = (0, 1, 2), (3, 4, 5)
BOTH = FIRST + OTHER


class Judged(NamedTuple):
    """One column on one half of the seeds; its rival is the best rule of the other half."""

    case: Case
    column: str
    rival: str
    behind: float  # `fairlead` over that rule
    luck: float  # that rule over the best of the half that it is judged on, found after the fact

    def __str__(self) -> str:
        return f"{self.case}, {HEADINGS[self.column]}"


def judged(found: Sequence[Cell], judging: Sequence[Cell]) -> Iterator[Judged]:
    """Of columns that both halves have."""
    rivals = {(cell.case, cell.column): cell.best for cell in found}
    for cell in judging:
        rival = rivals.get((cell.case, cell.column))
        if rival is not None:
            yield Judged(
                cell.case, cell.column, rival, cell.times_ms[OURS] / cell.times_ms[rival], cell.behind(rival)
            )  # fmt: skip


def rows(over: Sequence[Judged]) -> Iterator[tuple[str, ...]]:
    worlds = list(dict.fromkeys(each.case.world for each in over))
    groups = {world: [each for each in over if each.case.world == world] for world in worlds}
    for column, heading in HEADINGS.items():
        groups[f"plain: {heading}"] = [each for each in groups["plain"] if each.column == column]
    for name, group in groups.items():
        pairs = [fmean(log(each.behind) for each in pair) for pair in _pairs(group)]
        worst = max(pairs)
        where = next(pair[0] for pair, mean in zip(_pairs(group), pairs, strict=True) if mean == worst)
        yield (
            name,
            str(len(pairs)),
            f"{exp(fmean(pairs)):.3f}",
            f"{exp(fmean(log(each.luck) for each in group)):.3f}",
            f"{sum(pair > log(1.08) for pair in pairs)}",
            f"{exp(worst):.2f}",
            str(where),
        )


def _pairs(group: Sequence[Judged]) -> list[list[Judged]]:
    """Both halves of each column."""
    by_column: dict[tuple[Case, str], list[Judged]] = {}
    for each in group:
        by_column.setdefault((each.case, each.column), []).append(each)
    return list(by_column.values())


def page(runs: Runs) -> str:
    first, other = (list(traffic.cells(runs, LEADING, seeds)) for seeds in (FIRST, OTHER))
    over = [*judged(first, other), *judged(other, first)]
    if not over:
        return "# Against the rule that was best on other seeds\n\nNothing has been run yet.\n"
    known = {each.case for each in over}
    worlds = dict.fromkeys(each.case.world for each in over)
    together = [cell for cell in traffic.cells(runs, LEADING, BOTH) if cell.case in known]
    heads = ("World", "Columns", "`fairlead` over that rule", "That rule over the best", "Over 1.08", "Worst", "where")
    mine = ("Case", "Time", "`fairlead`, s", "Best baseline", "its time, s", "Ratio", "Place")
    return (
        "\n\n".join(
            (
                "# Against the rule that was best on other seeds, recorded traffic in simulated time",
                f"- Command: `python benchmarks/papers/held_out.py {' '.join(worlds)}`\n"
                f"- Commits: {runs.commits}; written {date()}\n"
                f"- Seeds: {', '.join(map(str, FIRST))} and {', '.join(map(str, OTHER))}; weights were chosen on "
                f"{', '.join(map(str, weights.SEEDS))}\n"
                f"- Cases as in [traffic.md](traffic.md), of which {len(known)} of {len(traffic.CASES)} were run on "
                f"all six; {len(LEADING)} baselines",
                "The best of the baselines in each column is found on one half of the seeds, and `fairlead` is "
                "compared with it on the other, both ways: below 1, `fairlead` is faster. *That rule over the best* "
                "is the same rule over the best of the half that it is judged on, found after the fact: what somebody "
                "would lose who knew for each column which rule was best there before, and what chance gives to the "
                "best in [traffic.md](traffic.md). A column is the mean of both ways.",
                table(heads, list(rows(over))),
                "## All six seeds, against the best found after the fact",
                table(("Worlds", "Policy", "Columns", "Geometric mean", "Worst", "where"), traffic.summary(together)),
                table(mine, list(traffic.rows(runs, together, BOTH))),
            )
        )
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worlds", nargs="*", default=["plain"], help="such as drifting; plain if none")
    parser.add_argument("--report", action="store_true", help="run nothing")
    asked = parser.parse_args()
    runs = Runs(KEPT)
    if not asked.report:
        traffic.make(runs, [case for case in traffic.CASES if case.world in asked.worlds], LEADING, BOTH)
    OUT.write_text(page(runs), encoding="utf-8")
    print(OUT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
