"""Every policy on pools and traffic drawn at random, that no weight and no form was made on.

    python benchmarks/papers/drawn.py             # 50 cases: half an hour on two cores; can be interrupted
    python benchmarks/papers/drawn.py --report    # the page of the kept runs only

What is drawn, and over which ranges: `_drawn.py`. Cases below 1,000 are for development; those of the page are not.
Load 1 is what `unified` serves of a case at most. Writes benchmarks/results/papers/drawn.md; each run is kept in
drawn/runs.jsonl.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import msgspec
from _contest import COLUMNS, HEADINGS, replayed
from _drawn import LOADS, REQUESTS, drawn
from traffic import LEADING

from fairlead.tools.bench.machine import this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.origin import commit, date
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.study import progress_bar, worker_processes

OUT: Final = Path("benchmarks/results/papers/drawn.md")
KEPT: Final = Path("benchmarks/results/papers/drawn/runs.jsonl")
FIRST: Final = 1_000
OURS: Final = "fairlead"
POLICIES: Final = (OURS, *LEADING)
REFERENCE: Final = "unified"


class Ran(msgspec.Struct, frozen=True):
    """One policy in one case, in ms."""

    number: int
    policy: str
    ttft_p95_ms: float
    e2e_p95_ms: float
    e2e_mean_ms: float
    cached_share: float
    commit: str

    @property
    def key(self) -> tuple[int, str]:
        return self.number, self.policy


class Job(NamedTuple):
    number: int
    policies: tuple[str, ...]


class Column(NamedTuple):
    number: int
    column: str
    times_ms: dict[str, float]

    @property
    def best(self) -> str:
        """The baseline that was best here."""
        return min((each for each in self.times_ms if each != OURS), key=self.times_ms.__getitem__)

    def behind(self, policy: str) -> float:
        """Over the best of the other policies."""
        return self.times_ms[policy] / min(ms for other, ms in self.times_ms.items() if other != policy)


def run(job: Job) -> list[Ran]:
    """All of a case, as its load is found only once."""
    case = drawn(job.number)
    observed = msgspec.structs.replace(case.world.observation, learn_s=5.0)  # as in the study of real traffic
    world = msgspec.structs.replace(case.world, observation=observed)
    faster = faster_for(case.load, world, case.traffic, read_policy_spec(REFERENCE))
    made = commit()
    found = []
    for policy in job.policies:
        each = replayed(world, case.traffic, faster, policy, job.number)
        times = {column: round(float(getattr(each, column)), 2) for column in COLUMNS}
        found.append(Ran(job.number, policy, cached_share=round(each.cached_share, 4), commit=made, **times))
    return found


def kept(path: Path) -> dict[tuple[int, str], Ran]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return {each.key: each for each in (msgspec.json.decode(line, type=Ran) for line in lines)}


def missing(known: Collection[tuple[int, str]], numbers: Sequence[int]) -> list[Job]:
    jobs = [Job(number, tuple(p for p in POLICIES if (number, p) not in known)) for number in numbers]
    return [job for job in jobs if job.policies]


def columns(ran: dict[tuple[int, str], Ran], numbers: Sequence[int]) -> Iterator[Column]:
    """Of the cases of which all was run."""
    for number in numbers:
        found = {policy: ran.get((number, policy)) for policy in POLICIES}
        known = {policy: each for policy, each in found.items() if each is not None}
        if len(known) == len(found):
            for column in COLUMNS:
                yield Column(number, column, {policy: getattr(each, column) for policy, each in known.items()})


def standings(over: Sequence[Column]) -> list[tuple[str, ...]]:
    """Each policy over the best of all others in each column, the least first."""
    rows = []
    for policy in POLICIES:
        behind = [each.behind(policy) for each in over]
        means = [_mean(each.behind(policy) for each in over if each.column == column) for column in COLUMNS]
        within = sum(each <= 1.08 for each in behind) / len(behind)
        shown = (f"{each:.3f}" for each in (_mean(behind), *means))
        rows.append((_mean(behind), (f"`{policy}`", *shown, f"{100 * within:.0f} %", f"{max(behind):.2f}")))
    return [row for _, row in sorted(rows)]


def farthest(over: Sequence[Column], count: int) -> Iterator[tuple[str, ...]]:
    """Where `fairlead` is farthest behind."""
    for each in sorted(over, key=lambda one: -one.behind(OURS))[:count]:
        case = drawn(each.number)
        pool, apps = case.world.endpoints, "; ".join(map(str, case.apps))
        engine = pool[0].engine
        yield (
            str(each.number), f"{len(pool)}, {case.world_name}",
            f"{engine.prefill_ms_per_token:.2f} and {engine.decoding_step_ms(1):.0f} ms", apps, f"{case.load:.2f}",
            HEADINGS[each.column], f"{each.times_ms[OURS] / 1e3:.2f}", f"`{each.best}`",
            f"{each.times_ms[each.best] / 1e3:.2f}", f"{each.behind(OURS):.2f}",
        )  # fmt: skip


def page(ran: dict[tuple[int, str], Ran], numbers: Sequence[int], command: str) -> str:
    over = list(columns(ran, numbers))
    if not over:
        return "# Every policy on pools and traffic drawn at random, in simulated time\n\nNothing has been run yet.\n"
    cases = {each.number for each in over}
    plain = [each for each in over if drawn(each.number).world_name == "plain"]
    commits = sorted({each.commit for each in ran.values() if each.number in cases})
    heads = ("Policy", "All columns", *HEADINGS.values(), "Columns within 8 %", "Worst")
    where = ("Case", "Engines, world", "Prefill and step", "Traffic", "Load", "Time", "`fairlead`, s", "Best", "its, s")
    return (
        "\n\n".join(
            (
                "# Every policy on pools and traffic drawn at random, in simulated time",
                f"- Command: `{command}`\n"
                f"- Commits: {', '.join(commits)}; written {date()}, {this_machine().cpu}\n"
                f"- Cases: {len(cases)} of {len(numbers)}, from {numbers[0]} on, each of {REQUESTS:,} requests and run "
                f"once; {len(plain) // len(COLUMNS)} of them in plain worlds\n"
                f"- Load: {LOADS[0]} to {LOADS[1]} of what `{REFERENCE}` serves at most",
                "Each policy over the best of all others in each column, chosen after the fact: geometric means. "
                "`fairlead` has its default weights, which were chosen on other traffic.",
                table(heads, standings(over)),
                "## Plain worlds only",
                table(heads, standings(plain)),
                "## Where `fairlead` is farthest behind",
                table((*where, "Ratio"), list(farthest(over, 20))),
            )
        )
        + "\n"
    )


def _mean(ratios: Iterable[float]) -> float:
    return exp(fmean(map(log, ratios)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=FIRST, help="number of the first case")
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kept", type=Path, default=KEPT, help="where runs are kept")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--report", action="store_true", help="run nothing")
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.cases)
    ran = kept(asked.kept)
    if not asked.report:
        jobs = missing(ran, numbers)
        asked.kept.parent.mkdir(parents=True, exist_ok=True)
        with progress_bar("cases") as bar, worker_processes(asked.jobs) as pool, asked.kept.open("ab") as file:
            task = bar.add_task("Simulating", total=len(jobs))
            for found in pool.map(run, jobs):
                ran.update((each.key, each) for each in found)
                file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in found))
                file.flush()
                bar.advance(task)
    command = f"python benchmarks/papers/drawn.py --first {asked.first} --cases {asked.cases}"
    asked.out.write_text(page(ran, numbers, command), encoding="utf-8")
    print(asked.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
