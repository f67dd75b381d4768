"""EAR's experiments in simulated time: the empty cells of the paper's tables, and its missing figure.

    python benchmarks/papers/ear.py [--seeds 3] [--draws 80] [--jobs 1]

Writes benchmarks/results/papers/ear.md and ear.png. Closed-loop agent sessions of the `claude_code` recording, cut at
65,536 tokens, drawn with Zipf weights, think times cut to 5 s: tools, not people. Sensitivity to T_hot and T_cool,
moves and their accuracy are in ear_migration.py. Compare ranks and percents: the paper has H20 cards and Qwen3-Coder.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from matplotlib.figure import Figure

from fairlead.policies import build_policy
from fairlead.tools.bench.markdown import table
from fairlead.tools.estimates import estimate
from fairlead.tools.figures import png_of
from fairlead.tools.origin import commit, date
from fairlead.tools.replay.claude_code import Sampling
from fairlead.tools.replay.network import Link
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.replay_report import Column, ReplayResults
from fairlead.tools.replay.rows import LatencyTarget, Rows, summarise
from fairlead.tools.replay.run import ReplayPlan, RunResult, Traffic, run, workload_of
from fairlead.tools.replay.split import SplitSimulation
from fairlead.tools.replay.world import World, alike

TRACE = "benchmarks/data/claude_code.jsonl.gz"
OUT = Path("benchmarks/results/papers")
ENGINES, SKEW = 8, 1.0
LOADS = (1.0, 4.0)  # of what least_request can serve
KV_TOKENS = 125_000  # of one engine, so that some tens of sessions fill 8 caches, as the paper's many sessions did
SPLIT = "static split"
NAMES = {
    "round_robin": "load-balance (`round_robin`)",
    "lmetric": "LMetric (`lmetric`)",
    "lmetric:plus_one=false": "LMetric, the prototype's (`plus_one: false`)",
    "llm_d_load_aware": "kv-aware + load (`llm_d_load_aware`)",
    "session_affinity": "sticky (`session_affinity`)",
    SPLIT: "static prefill/decode split, 4 + 4",
    "unified": "unified (2.0)",
    "unified:overload=1.3": "unified, tuned (1.3)",
    "ear": "EAR, affinity only",
    "ear+pull": "EAR, full (request waits for its KV)",
    "ear+copy": "EAR, full (copied, then flipped)",
    "fairlead": "`fairlead`",
}
COLUMNS = (
    Column("TTFT p50 s", "ttft_p50_ms", 2, 1e-3),
    Column("TTFT p90 s", "ttft_p90_ms", 2, 1e-3),
    Column("TPOT p90 ms", "tpot_p90_ms"),
    Column("E2E p90 s", "e2e_p90_ms", 1, 1e-3),
    Column("Cached %", "cached_share", 1, 100.0),
    Column("Hotspot", "hotspot", 2),
    Column("Median worker TTFT p90 s", "median_worker_ttft_p90_ms", 1, 1e-3),
    Column("Worst worker TTFT p90 s", "worst_worker_ttft_p90_ms", 1, 1e-3),
    Column("Mean turn s", "e2e_mean_ms", 1, 1e-3),
    Column("Amplification", "amplification", 2),
)
E2E_P90, CACHED, TURN, AMPLIFICATION = COLUMNS[3], COLUMNS[4], COLUMNS[8], COLUMNS[9]
VARIED = ("lmetric", "session_affinity", "unified", "ear", "ear+pull", "fairlead")
PUBLISHED = (
    ("load-balance", "54.1", "", "", "", ""),
    ("LMetric", "56.9", "24.8", "14.0", "31.3", "about 8"),
    ("sticky", "77.2", "34.6", "20.3", "55.4", ""),
    ("unified", "79.4", "18.0", "10.3", "37.7", ""),
)


class How(NamedTuple):
    seeds: tuple[int, ...]
    draws: int  # of sessions
    jobs: int | None  # processes

    def sampling(self, skew: float) -> Sampling:
        return Sampling(think_cap_s=5.0, zipf=skew, draws=self.draws)


def at_load(how: How, load: float, skew: float = SKEW) -> Traffic:
    """The load is a share of what `least_request` can serve of traffic without extra skew in the first world."""
    base = Traffic(TRACE, how.sampling(SKEW))
    faster = faster_for(
        load, alike(ENGINES, kv_tokens=KV_TOKENS), workload_of(base, how.seeds[0]), read_policy_spec("least_request")
    )
    return Traffic(TRACE, how.sampling(skew), faster=faster)


def measured(how: How, name: str, traffic: Traffic, policies: Sequence[str], world: World) -> list[RunResult]:
    plan = ReplayPlan((traffic,), tuple(read_policy_spec(p) for p in policies if p != SPLIT), how.seeds, world)
    found = run(plan, jobs=how.jobs)
    if SPLIT in policies:
        found += [split(traffic, seed) for seed in how.seeds]
    return [msgspec.structs.replace(each, trace=name) for each in found]


def split(traffic: Traffic, seed: int) -> RunResult:
    """Half of the engines prefill, chosen by the fewest waiting tokens; the others decode."""
    workload, specs = workload_of(traffic, seed), alike(ENGINES, kv_tokens=KV_TOKENS).endpoints
    prefillers, decoders = specs[: ENGINES // 2], specs[ENGINES // 2 :]
    rows = Rows()
    world = World(prefillers)
    simulation = SplitSimulation(world, decoders, Link(), workload, build_policy("lpwl", {}), seed=seed, sink=rows.add)
    simulation.run()
    summary = summarise(
        rows.frame(), simulation.counts, recorded_ms=workload.span_ms, engines=ENGINES // 2, target=LatencyTarget()
    )
    note = f"{simulation.recomputed} prompts found no room where they should have been decoded"
    return RunResult(workload.name, SPLIT, seed, (*workload.notes, note), summary)


def text(results: ReplayResults, trace: str, policy: str, column: Column) -> str:
    return estimate(results.values(trace, policy, column)).plus_minus(column.digits)


def main_tables(results: ReplayResults) -> Iterator[str]:
    for load in LOADS:
        name = f"load {load:g}"
        heads = ("Scheduler", *(column.heading for column in COLUMNS))
        rows = [(NAMES[p], *(text(results, name, p, column) for column in COLUMNS)) for p in NAMES]
        yield f"### At {load:g} of what `least_request` can serve\n\n{table(heads, rows)}"
    notes = [o.notes[-1] for o in results.of(f"load {LOADS[-1]:g}", SPLIT)]
    yield f"Static split at the higher load, by seed: {'; '.join(notes)}."
    heads = ("Paper", "Cached %", "E2E p90 s", "Median worker TTFT p90 s", "Worst worker", "Amplification")
    yield f"The paper's own figures, where it has any (and TTFT p50 62.8 s for the split):\n\n{table(heads, PUBLISHED)}"
    yield "Migration without affinity, which the paper lists, has nothing to leave: it is the rule for new sessions."


def coupling(results: ReplayResults) -> tuple[str, bytes]:
    """Amplification over mean turn time: a table, and the paper's figure 8."""
    rows = []
    for policy in NAMES:
        cells = [
            f"{estimate(results.values(f'load {load:g}', policy, TURN)).mean:.1f} s, "
            f"{estimate(results.values(f'load {load:g}', policy, AMPLIFICATION)).mean:.2f}"
            for load in LOADS
        ]
        rows.append((NAMES[policy], *cells))
    figure = Figure(figsize=(8, 5.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, policy in enumerate(NAMES):
        points = [
            [estimate(results.values(f"load {load:g}", policy, column)).mean for column in (TURN, AMPLIFICATION)]
            for load in LOADS
        ]
        is_ours = policy == "fairlead"
        axes.plot(
            *zip(*points, strict=True),
            marker="os^Dv*"[number % 6],
            color="#D55E00" if is_ours else f"C{number % 10}",
            linewidth=2.2 if is_ours else 1.0,
            zorder=4 if is_ours else 3,
            label=NAMES[policy].replace("`", ""),
        )
    axes.set(xlabel="mean turn time, s", ylabel="wall clock / span of the recording", xscale="log")
    axes.axhline(1.0, color="#999999", linewidth=0.8)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    heads = ("Mean turn time, amplification", *(f"load {load:g}" for load in LOADS))
    return table(heads, rows), png_of(figure)


def sensitivity(how: How) -> Iterator[str]:
    load = LOADS[0]
    by_skew = [
        outcome
        for skew in (0.5, 1.5)
        for outcome in measured(
            how, f"Zipf {skew:g}", at_load(how, load, skew), VARIED, alike(ENGINES, kv_tokens=KV_TOKENS)
        )
    ]
    by_size = [
        outcome
        for tokens in (250_000, 500_000)
        for outcome in measured(
            how, f"{tokens // 1000}k tokens", at_load(how, load), VARIED, alike(ENGINES, kv_tokens=tokens)
        )
    ]
    for heading, found in (("Skew of sessions", by_skew), ("KV cache of one engine", by_size)):
        results = ReplayResults(found)
        rows = [
            (NAMES[p], *(f"{text(results, t, p, E2E_P90)} s, {text(results, t, p, CACHED)} %" for t in results.traces))
            for p in VARIED
        ]
        yield f"### {heading}: E2E p90 and cached share\n\n{table(('Scheduler', *results.traces), rows)}"


DIFFERS = """\
The sessions are of another agent and their skew is drawn: agents of one session share its id, its tools and its system
prompt. The KV of a split or moved session travels at 10 GB/s with 20 ms to set up, without contention; a
decoding engine without room computes the prompt again, where the prototype failed requests. The split's cached share
and workers are of its four prefill engines."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--draws", type=int, default=80, help="sessions drawn")
    parser.add_argument("--jobs", type=int, help="processes; one a core")
    asked = parser.parse_args()
    how = How(tuple(range(asked.seeds)), asked.draws, asked.jobs)
    found = []
    for load in LOADS:
        found += measured(how, f"load {load:g}", at_load(how, load), tuple(NAMES), alike(ENGINES, kv_tokens=KV_TOKENS))
        print(f"load {load:g} is done", flush=True)
    results = ReplayResults(found)
    coupled, png = coupling(results)
    facts = (
        f"- Command: `python benchmarks/papers/ear.py --seeds {asked.seeds} --draws {asked.draws}`",
        f"- Seeds: {', '.join(map(str, how.seeds))}; ± is half a 95 % interval",
        f"- Commit: {commit()}, {date()}",
        f"- World: {ENGINES} engines with {KV_TOKENS:,} tokens of KV cache",
        *(f"- {note}" for note in found[0].notes),
    )
    parts = ["# EAR's experiments", "\n".join(facts), "## End to end and ablation", *main_tables(results)]
    parts += [
        "## Dispatch coupling",
        "In a closed loop a slow policy keeps sessions longer, which makes it slower. Where amplification rises with "
        "the mean turn time, that loop is at work. The paper has one figure: about 8 for LMetric.",
        coupled,
        "![Amplification over mean turn time](ear.png)",
    ]
    parts += [f"## Sensitivity, at {LOADS[0]:g} of what `least_request` can serve", *sensitivity(how)]
    parts += ["## What differs from the paper", DIFFERS]
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "ear.png").write_bytes(png)
    (OUT / "ear.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print((OUT / "ear.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
