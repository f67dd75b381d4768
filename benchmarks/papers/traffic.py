"""Every policy on real traffic: `fairlead`, with weights chosen without that trace, against each baseline.

    python benchmarks/papers/traffic.py                 # all cases and policies: hours on one core; can be interrupted
    python benchmarks/papers/traffic.py --leading       # without settings of baselines, and those that never led
    python benchmarks/papers/traffic.py --report        # the page of the kept runs only

The weights are chosen first, as `weights.py` does. Writes benchmarks/results/papers/traffic.md; each run is kept in
traffic/runs.jsonl, and a study goes on where it was interrupted. Loads are shares of what the best of
`_contest.REFERENCES` serves in that world.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import exp, isfinite, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import weights
from _contest import COLUMNS, HEADINGS, KEPT, REFERENCES, TRACES, Case, Runs, Trace

from fairlead.tools.bench.markdown import table
from fairlead.tools.estimates import ratio
from fairlead.tools.origin import date
from fairlead.tools.replay.policy_spec import read_policy_spec
from fairlead.tools.replay.worlds import CHANGES, named_world

OUT = Path("benchmarks/results/papers/traffic.md")
LEADING = (
    "cache_aware", "lmetric", "lpwl", "llm_d", "llm_d_load_aware", "llm_d_affinity", "dynamo_kv", "unified",
    "unified:overload=1.3", "gorgo", "gorgo_calibrate", "ear",
)  # fmt: skip
SETTINGS = (
    "cache_aware:cache_threshold=0.5:balance_abs_threshold=32:balance_rel_threshold=1.1", "llm_d:prefix_weight=6",
    "llm_d_affinity:prefix_weight=6", "dynamo_kv:overlap_score_weight=3", "unified:overload=3", "ear+pull",
    "lmetric:plus_one=false", "gorgo:queue_weight=1",
)  # fmt: skip
TRAILING = (
    "random", "round_robin", "least_request", "least_load", "least_load@30s", "power_of_two", "prefix_cache",
    "session_affinity", "session_affinity:key=prompt", "llm_d@30s", "llm_d_load_aware@30s", "llm_d_affinity@30s",
    "gorgo_hillclimb", "gorgo_hillclimb:objective=e2e", "laar",
)  # fmt: skip
HIGHER = {"mooncake": 0.8, "agents": 1.8, "hot-agents": 1.8, "azure": 0.9, "short": 0.9}
OVERLOAD = {"mooncake": 1.1, "azure": 1.1, "short": 1.1}
CASES = (
    *(Case(trace, "plain", load) for trace, load in weights.LOADS.items()),
    *(Case(trace, "worst", load) for trace, load in weights.LOADS.items()),
    *(Case(trace, "plain", load) for trace, load in HIGHER.items()),
    *(Case(trace, "plain", load) for trace, load in OVERLOAD.items()),
    *(
        Case(trace, world, load)
        for world in CHANGES
        if world not in ("plain", "worst")
        for trace, load in weights.LOADS.items()
    ),
)
OURS, DEFAULT = "fairlead, weights of the other traces", "fairlead, default weights"


class Cell(NamedTuple):
    """One column of a case: the time in ms of each policy, averaged over seeds."""

    case: Case
    column: str
    times_ms: dict[str, float]

    @property
    def best(self) -> str:
        """The baseline that was best here."""
        return min((p for p in self.times_ms if p not in (OURS, DEFAULT)), key=self.times_ms.__getitem__)

    def behind(self, policy: str) -> float:
        return self.times_ms[policy] / self.times_ms[self.best]


def applies(policy: str, case: Case) -> bool:
    """Sessions move only where one sidecar routes."""
    return read_policy_spec(policy).moving is None or named_world(case.world).sidecars.count == 1


def ours(runs: Runs, trace: str | None) -> str | None:
    """With the weights of all traces but this one, or the defaults; None while `weights.py` has not been run."""
    setting = weights.default(runs) if trace is None else weights.chosen(runs, trace)
    return None if setting is None else f"fairlead:{setting}"


def make(runs: Runs, cases: Sequence[Case], policies: Sequence[str], seeds: Sequence[int]) -> None:
    for case in cases:
        mine, default = ours(runs, case.trace), ours(runs, None)
        assert mine is not None
        assert default is not None
        runs.make([case], (mine, default, *(each for each in policies if applies(each, case))), seeds)


def cells(runs: Runs, policies: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """Those of the cases of which all of `policies` were run."""
    for case in CASES:
        mine, default = ours(runs, case.trace), ours(runs, None)
        if mine is None or default is None:
            continue
        run = {OURS: mine, DEFAULT: default} | {each: each for each in policies if applies(each, case)}
        for column in COLUMNS:
            times = {name: runs.mean(case, policy, column, seeds) for name, policy in run.items()}
            known = {name: time for name, time in times.items() if time is not None}
            if len(known) == len(run):
                yield Cell(case, column, known)


def summary(over: Sequence[Cell]) -> list[tuple[str, ...]]:
    plain = [cell for cell in over if cell.case.world == "plain"]
    other = [cell for cell in over if cell.case.world != "plain"]
    groups = {"plain, all loads": plain, "other worlds": other}
    for column, heading in HEADINGS.items():
        groups[f"plain: {heading}"] = [cell for cell in plain if cell.column == column]
        groups[f"other worlds: {heading}"] = [cell for cell in other if cell.column == column]
    for world in CHANGES:
        groups[f"only {world}"] = [cell for cell in other if cell.case.world == world]
    found: list[tuple[str, ...]] = []
    for name, group in groups.items():
        if group:
            for policy in (OURS, DEFAULT):
                worst = max(group, key=lambda cell: cell.behind(policy))
                mean = exp(fmean(log(cell.behind(policy)) for cell in group))
                where = f"{worst.case}, {HEADINGS[worst.column]}"
                found.append(
                    (name, f"`{policy}`", str(len(group)), f"{mean:.3f}", f"{worst.behind(policy):.2f}", where)
                )
    return found


def regrets(over: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Each policy over the best of all, ours included, on average and at worst."""
    rows = []
    for policy in dict.fromkeys(name for cell in over for name in cell.times_ms if name != DEFAULT):
        mine = [cell for cell in over if policy in cell.times_ms]
        ratios = [
            (cell.times_ms[policy] / min(ms for name, ms in cell.times_ms.items() if name != DEFAULT), cell)
            for cell in mine
        ]
        worst, where = max(ratios, key=lambda each: each[0])
        mean = exp(fmean(log(each) for each, _ in ratios))
        rows.append((mean, f"`{policy}`", str(len(mine)), f"{worst:.2f}", f"{where.case}, {HEADINGS[where.column]}"))
    return [(name, count, f"{mean:.3f}", worst, where) for mean, name, count, worst, where in sorted(rows)]


def rows(runs: Runs, over: Sequence[Cell], seeds: Sequence[int]) -> Iterator[tuple[str, ...]]:
    for cell in over:
        mine = ours(runs, cell.case.trace)
        assert mine is not None
        ranking = sorted((p for p in cell.times_ms if p != DEFAULT), key=cell.times_ms.__getitem__)
        yield (
            str(cell.case),
            HEADINGS[cell.column],
            f"{cell.times_ms[OURS] / 1e3:.2f}",
            f"`{cell.best}`",
            f"{cell.times_ms[cell.best] / 1e3:.2f}",
            f"{cell.behind(OURS):.2f}{_interval(runs, cell, mine, seeds)}",
            f"{ranking.index(OURS) + 1} of {len(ranking)}",
        )


def _interval(runs: Runs, cell: Cell, mine: str, seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return ", one seed"
    pairs = [(runs.get(cell.case, mine, seed), runs.get(cell.case, cell.best, seed)) for seed in seeds]
    times = [(getattr(a, cell.column), getattr(b, cell.column)) for a, b in pairs if a is not None and b is not None]
    found = ratio([a for a, _ in times], [b for _, b in times])
    return f" ({found.low:.2f} to {found.high:.2f})" if isfinite(found.high) else ""


def page(runs: Runs, policies: Sequence[str], seeds: Sequence[int]) -> str:
    over = list(cells(runs, policies, seeds))
    if not over:
        return "# Every policy on real traffic, in simulated time\n\nNothing has been run yet.\n"
    cases = list(dict.fromkeys(cell.case for cell in over))
    leading = " --leading" if policies == LEADING else ""
    sizes = [_size(runs, trace, cases, seeds) for trace in TRACES]
    heads = ("Case", "Time", "`fairlead`, s", "Best baseline", "its time, s", "Ratio", "Place")
    return (
        "\n\n".join(
            (
                "# Every policy on real traffic, in simulated time",
                f"- Command: `python benchmarks/papers/traffic.py --seeds {len(seeds)}{leading}`\n"
                f"- Commits: {runs.commits}; written {date()}\n"
                f"- Seeds: {', '.join(map(str, seeds))}; weights were chosen on {', '.join(map(str, weights.SEEDS))}\n"
                f"- Requests: {'; '.join(filter(None, sizes))}\n"
                f"- Cases that were run: {len(cases)} of {len(CASES)}; {len(policies)} baselines and settings of them\n"
                f"- Load 1 is the greatest capacity of {', '.join(f'`{each}`' for each in REFERENCES)} in that world",
                "`fairlead` over the best of all baselines in each column, chosen after the fact, their settings "
                "included: below 1, `fairlead` is faster than every one of them. Its weights for a trace were chosen "
                "on the other traces ([weights.md](weights.md)); the defaults have seen every one of them.",
                table(("Worlds", "Policy", "Columns", "Geometric mean", "Worst", "where"), summary(over)),
                "## Column by column",
                table(heads, list(rows(runs, over, seeds))),
                "## One policy for all of it",
                "Each policy over the best policy of each column, `fairlead` included.",
                table(("Policy", "Columns", "Geometric mean", "Worst", "where"), regrets(over)),
                "## What this does not show",
                _LIMITS,
            )
        )
        + "\n"
    )  # fmt: skip


def _size(runs: Runs, trace: Trace, cases: Sequence[Case], seeds: Sequence[int]) -> str:
    for case in cases:
        found = runs.get(case, LEADING[0], seeds[0])
        if case.trace == trace.name and found is not None:
            return f"{trace.name} ({trace.about}) {found.requests:,}, a seed draws {trace.drawn}"
    return ""


_LIMITS = """\
- Runs are short, 500 to 3,000 requests: of agents, a p95 rests on some thirty of them. A few per cent either way mean \
nothing where the interval is wider, and the best of twelve is ahead by chance alone: see [chance.md](chance.md).
- What is learned is put in force every 5 s of simulated time, not every second, because fitting is most of a run.
- Engines are simulated. The worlds differ from the cost in ways that we thought of.
- All rules read Fairlead's prefix index and its counts; gateways with tables of their own may do better or worse.
- Five traces, two of them made from one recording and one made up: leaving one out leaves a relative of it in."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="as the page names them, such as 'mooncake, plain, 0.55'; all if none")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--leading", action="store_true", help="leave out settings and what never led")
    parser.add_argument("--report", action="store_true", help="run nothing")
    asked = parser.parse_args()
    runs, seeds = Runs(KEPT), tuple(range(asked.seeds))
    policies = LEADING if asked.leading else (*LEADING, *SETTINGS, *TRAILING)
    if not asked.report:
        if not asked.cases or ours(runs, None) is None:
            weights.make(runs, weights.cases())
        make(runs, [case for case in CASES if not asked.cases or str(case) in asked.cases], policies, seeds)
    OUT.write_text(page(runs, policies, seeds), encoding="utf-8")
    print(OUT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
