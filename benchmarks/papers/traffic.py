"""Every policy on real traffic: `fairlead` against each baseline, near and below what `least_request` can serve.

    python benchmarks/papers/traffic.py            # all cells, some two hours on one core
    python benchmarks/papers/traffic.py mooncake-0.7 --seeds 2 --jobs 1

Writes benchmarks/results/papers/traffic/<cell>.md and <cell>.json, and traffic.md over all cells that are there. Loads
are shares of what `least_request` serves when it never waits for a request: they are set before any other policy runs.
Policies that read engine reports run twice: with fresh ones, and with reports 30 s old, as in GORGO's experiment.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from fairlead.bench.commit import commit
from fairlead.bench.markdown import table
from fairlead.replay.claude_code import Sampling
from fairlead.replay.contest import contestant, faster_for
from fairlead.replay.report import COMPARED, Column, Results, against, tables
from fairlead.replay.run import Outcome, Plan, Traffic, run, workload_of
from fairlead.replay.world import alike

DATA = Path("benchmarks/data")
OUT = Path("benchmarks/results/papers/traffic")
OURS = "fairlead"
CACHED = Column("Cached", "cached_share")
_LEADS = 1.005  # `fairlead` over a baseline, to be told
BASELINES = (
    "random", "round_robin", "least_request", "least_load", "least_load@30s", "power_of_two", "session_affinity",
    "session_affinity:key=prompt", "prefix_cache", "cache_aware", "lmetric", "lmetric:plus_one=false", "lpwl",
    "llm_d", "llm_d@30s", "llm_d_load_aware", "llm_d_load_aware@30s", "unified", "unified:overload=1.3", "gorgo",
    "laar", "ear",
)  # fmt: skip
ENGINES = 8


class Cell(NamedTuple):
    """A trace at a load. Parameters of `fairlead` were chosen on seeds from 100 on, so those here are held out."""

    name: str
    file: str
    load: float
    about: str
    sampling: Sampling = Sampling()


CELLS = (
    Cell("mooncake-0.7", "mooncake_conversation.jsonl.gz", 0.7, "conversations, open loop"),
    Cell("mooncake-0.95", "mooncake_conversation.jsonl.gz", 0.95, "conversations, open loop"),
    Cell("agents-0.7", "claude_code.jsonl.gz", 0.7, "agent sessions as recorded, closed loop"),
    Cell("agents-1.5", "claude_code.jsonl.gz", 1.5, "agent sessions as recorded, closed loop"),
    Cell("hot-agents-0.7", "claude_code.jsonl.gz", 0.7, "Zipf-resampled sessions", Sampling(zipf=1.0, draws=60)),
    Cell("hot-agents-1.5", "claude_code.jsonl.gz", 1.5, "Zipf-resampled sessions", Sampling(zipf=1.0, draws=60)),
    Cell("azure-0.5", "azure_llm_2023_conv.csv.gz", 0.5, "short prompts, nothing to reuse"),
    Cell("azure-0.7", "azure_llm_2023_conv.csv.gz", 0.7, "short prompts, nothing to reuse"),
)


class Result(msgspec.Struct, frozen=True):
    cell: str
    faster: float
    commit: str
    date: str
    outcomes: list[Outcome]


def measured(cell: Cell, seeds: tuple[int, ...], jobs: int | None) -> Result:
    world, reference = alike(ENGINES), contestant("least_request")
    traffic = Traffic(str(DATA / cell.file), cell.sampling)
    faster = faster_for(cell.load, world, workload_of(traffic, seeds[0]), reference)
    traffic = msgspec.structs.replace(traffic, faster=faster)
    plan = Plan((traffic,), tuple(map(contestant, (OURS, *BASELINES))), seeds, world)
    outcomes = [msgspec.structs.replace(each, trace=cell.name) for each in run(plan, jobs=jobs)]
    return Result(cell.name, faster, commit(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), outcomes)


def page(cell: Cell, result: Result) -> str:
    results = Results(result.outcomes)
    seeds = sorted({each.seed for each in result.outcomes})
    facts = (
        f"- Command: `python benchmarks/papers/traffic.py {cell.name} --seeds {len(seeds)}`",
        f"- Seeds: {', '.join(map(str, seeds))}",
        f"- Commit: {result.commit}, {result.date}",
        f"- World: {ENGINES} simulated engines, the defaults of `fairlead replay`",
        f"- Load: {cell.load:g} of what `least_request` can serve; conversations start {result.faster:.3g} times as "
        "often as recorded",
        *(f"- {note}" for note in result.outcomes[0].notes),
    )
    return "\n\n".join((f"# {cell.name}: {cell.about}", "\n".join(facts), *tables(results, cell.name))) + "\n"


def overview(found: dict[str, Result]) -> str:
    """For each cell and time, who is fastest, `fairlead` over the best baseline, and who is near the best in all."""
    cells = [(cell, Results(found[cell.name].outcomes)) for cell in CELLS if cell.name in found]
    heads = ("Cell", "Time", "`fairlead`, s", "Best baseline", "its time, s", "Ratio (95 %)", "Place of 23")
    return (
        "\n\n".join(
            (
                "# Every policy on real traffic, in simulated time",
                "`fairlead` over the baseline that was best in that column: below 1, `fairlead` is faster. Intervals "
                "are 95 %, over seeds; choosing the best of 22 after the fact favours the baselines. The pages of the "
                "cells, in traffic/, have every policy and say how each was run.",
                table(heads, [row for cell, results in cells for row in _rows(cell, results)]),
                "## One policy for all of it",
                "Each policy over the best policy of each column: the geometric mean of all columns, and the column "
                "where it is furthest behind.",
                table(("Policy", "Mean", "Worst", "where"), _regrets(cells)),
                "## Where a baseline leads, and at what price",
                "Columns in which a baseline's mean is more than half a per cent below `fairlead`'s: `fairlead` over "
                "that same baseline in all columns of the cell, and what engines had cached.",
                table(
                    ("Cell", "It leads in", "Baseline", *(f"{c.heading}, ratio" for c in COMPARED), "Cached %"),
                    _prices(cells),
                ),
            )
        )
        + "\n"
    )


def _regrets(cells: list[tuple[Cell, Results]]) -> list[tuple[str, ...]]:
    behind: dict[str, list[tuple[float, str]]] = {}
    for cell, results in cells:
        for column in COMPARED:
            means = {policy: _mean(results, cell.name, policy, column) for policy in results.policies}
            for policy, mean in means.items():
                ratio = mean / min(means.values())
                behind.setdefault(policy, []).append((ratio, f"{cell.name}, {column.heading}"))
    rows = [(exp(fmean(log(ratio) for ratio, _ in all_)), *max(all_), policy) for policy, all_ in behind.items()]
    return [(f"`{policy}`", f"{mean:.2f}", f"{worst:.2f}", where) for mean, worst, where, policy in sorted(rows)]


def _prices(cells: list[tuple[Cell, Results]]) -> Iterator[tuple[str, ...]]:
    for cell, results in cells:
        for column in COMPARED:
            means = {p: _mean(results, cell.name, p, column) for p in results.policies if p != OURS}
            rival = min(means, key=means.__getitem__)
            if _mean(results, cell.name, OURS, column) / means[rival] <= _LEADS:
                continue
            ratios = [against(results, cell.name, OURS, rival, each).mean for each in COMPARED]
            cached = [_mean(results, cell.name, policy, CACHED) for policy in (OURS, rival)]
            yield (
                cell.name,
                column.heading,
                f"`{rival}`",
                *(f"{ratio:.2f}" for ratio in ratios),
                " for ".join(f"{100 * share:.1f}" for share in cached),
            )


def _rows(cell: Cell, results: Results) -> Iterator[tuple[str, ...]]:
    for column in COMPARED:
        means_s = {p: _mean(results, cell.name, p, column) / 1e3 for p in results.policies}
        ranking = sorted(means_s, key=means_s.__getitem__)
        rival = next(policy for policy in ranking if policy != OURS)
        ratio = against(results, cell.name, OURS, rival, column)
        yield (
            f"[{cell.name}](traffic/{cell.name}.md)",
            column.heading,
            f"{means_s[OURS]:.2f}",
            f"`{rival}`",
            f"{means_s[rival]:.2f}",
            f"{ratio.mean:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
            str(ranking.index(OURS) + 1),
        )


def _mean(results: Results, trace: str, policy: str, column: Column) -> float:
    values = results.values(trace, policy, column)
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="*", choices=[[], *(cell.name for cell in CELLS)], help="all, if none is named")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--jobs", type=int, help="processes; one a core")
    asked = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for cell in CELLS:
        if asked.cells and cell.name not in asked.cells:
            continue
        result = measured(cell, tuple(range(asked.seeds)), asked.jobs)
        (OUT / f"{cell.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
        (OUT / f"{cell.name}.md").write_text(page(cell, result), encoding="utf-8")
        print(f"{cell.name} is done", flush=True)
    found = {path.stem: msgspec.json.decode(path.read_bytes(), type=Result) for path in OUT.glob("*.json")}
    text = overview(found)
    OUT.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
