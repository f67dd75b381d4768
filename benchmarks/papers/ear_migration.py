"""EAR's second pillar in simulated time: sessions that leave hot hosts, against sessions that never do.

    python benchmarks/papers/ear_migration.py [--seeds 10] [--draws 120]

Writes benchmarks/results/papers/ear_migration.md and ear_migration.png. Agent sessions drawn with Zipf weights, the
longest most often. In two scenes each agent is a session of its own; in the others all agents of a recorded session
share its id, so that a few sessions are more than one engine can serve. Measures are fixed: the worst engine's
p90 and p95 of TTFT, and the p95 and p99 of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress

from fairlead.bench.commit import commit
from fairlead.bench.markdown import table
from fairlead.bench.numbers import Estimate, estimate, ratio
from fairlead.core.facts import session_key
from fairlead.core.moves import Move
from fairlead.replay.claude_code import Sampling
from fairlead.replay.contest import contestant, faster_for
from fairlead.replay.moving import MovingSimulation
from fairlead.replay.rows import Rows, Summary, Target, summarise
from fairlead.replay.run import Traffic, workload_of
from fairlead.replay.simulation import Answer
from fairlead.replay.workload import Workload
from fairlead.replay.world import World, alike

TRACE = "benchmarks/data/claude_code.jsonl.gz"
OUT = Path("benchmarks/results/papers")
ENGINES = 8
FULL = ("ear+pull", "ear+copy")
RIVALS = ("session_affinity", "ear", "unified")
POLICIES = (*RIVALS, *FULL)
NAMES = {
    "session_affinity": "`session_affinity`: sticky by a hash",
    "ear": "`ear`: affinity only",
    "ear+pull": "`ear+pull`: the request waits for its KV",
    "ear+copy": "`ear+copy`: copied, then the binding flips",
}
HOT_TOKENS, COOL_DOWNS_S = (4096, 16_384, 65_536), (10, 60, 300)


class Scene(NamedTuple):
    name: str
    load: float  # of what least_request can serve
    shares_ids: bool
    about: str
    kv_tokens: int = 500_000  # of one engine
    think_cap_s: float = 60.0

    @property
    def world(self) -> World:
        return alike(ENGINES, kv_tokens=self.kv_tokens)


SHARED: Final = "the agents of a recorded session share its id"
SCENES = (
    Scene("high", 1.4, False, "each agent a session of its own"),
    Scene("one id for many agents", 0.7, True, SHARED),
    Scene("small caches", 1.0, True, f"{SHARED}; 125,000 tokens of KV cache, thinking cut to 5 s", 125_000, 5.0),
    Scene("low", 0.3, False, "each agent a session of its own"),
)


class Ran(NamedTuple):
    summary: Summary
    worst_p95_ms: float  # TTFT of the worst engine
    moves: Sequence[tuple[float, Move]]
    answers: Sequence[Answer]


MEASURES: dict[str, Callable[[Ran], float]] = {
    "worst engine's p90": lambda run: run.summary.worst_worker_ttft_p90_ms,
    "its p95": lambda run: run.worst_p95_ms,
    "p95 of all": lambda run: run.summary.ttft_p95_ms,
    "p99 of all": lambda run: run.summary.ttft_p99_ms,
}
Found = dict[str, list[Ran]]  # by policy, in the order of the seeds


def workload(scene: Scene, seed: int, draws: int, faster: float = 1.0, skew: float = 1.0) -> Workload:
    sampling = Sampling(think_cap_s=scene.think_cap_s, zipf=skew, draws=draws)
    made = workload_of(Traffic(TRACE, sampling, faster=faster), seed)
    if scene.shares_ids:
        return made
    own = [
        msgspec.structs.replace(each, session=session_key(str(number).encode()))
        for number, each in enumerate(made.conversations)
    ]
    return msgspec.structs.replace(made, conversations=tuple(own))


def faster_at(scene: Scene, draws: int) -> float:
    """At a load of 1, told of sessions with a skew of 1 and the first seed."""
    return faster_for(1.0, scene.world, workload(scene, 0, draws), contestant("least_request"))


def ran(policy: str, scene: Scene, traffic: Workload, seed: int) -> Ran:
    rows, answers = Rows(), []

    def sink(answer: Answer) -> None:
        rows.add(answer)
        answers.append(answer)

    simulation = contestant(policy).simulation(scene.world, traffic, seed, sink)
    simulation.run()
    summary = summarise(rows.frame(), simulation.counts, recorded_ms=traffic.span_ms, engines=ENGINES, target=Target())
    by_engine: dict[int, list[float]] = {}
    for each in answers:
        by_engine.setdefault(each.endpoint, []).append(each.first_token_ms)
    worst_p95_ms = max(float(np.quantile(times, 0.95, method="higher")) for times in by_engine.values())
    moves = simulation.moves if isinstance(simulation, MovingSimulation) else ()
    return Ran(summary, worst_p95_ms, moves, answers)


def shortest_pause_s(moves: Sequence[tuple[float, Move]]) -> float:
    """Between two moves of one session; infinite if none moved twice."""
    last: dict[bytes, float] = {}
    shortest = float("inf")
    for at_ms, move in sorted(moves, key=lambda each: each[0]):
        shortest = min(shortest, (at_ms - last.get(move.session, -np.inf)) / 1e3)
        last[move.session] = at_ms
    return shortest


def told(value: Estimate, digits: int) -> str:
    return f"{value.mean:,.{digits}f} ({value.low:,.{digits}f} to {value.high:,.{digits}f})"


HEADS = (
    "Policy", "Moves, % of requests", "of them back", "Worst engine, TTFT p90 ms", "its p95 ms", "Median engine, p90",
    "TTFT p50 ms", "p95 ms", "p99 ms", "E2E p95 s", "Cached %", "Hotspot",
)  # fmt: skip


def rows(found: Found) -> Iterator[tuple[str, ...]]:
    for policy, runs in found.items():

        def mean(value: Callable[[Ran], float], digits: int = 0, of: Sequence[Ran] = tuple(runs)) -> str:
            return told(estimate([value(run) for run in of]), digits)

        moves = "+" in policy
        yield (
            NAMES.get(policy, f"`{policy}`"),
            mean(lambda run: 1e2 * run.summary.moves / run.summary.requests, 2) if moves else "",
            mean(lambda run: run.summary.moves_back, 1) if moves else "",
            mean(MEASURES["worst engine's p90"]),
            mean(MEASURES["its p95"]),
            mean(lambda run: run.summary.median_worker_ttft_p90_ms),
            mean(lambda run: run.summary.ttft_p50_ms),
            mean(MEASURES["p95 of all"]),
            mean(MEASURES["p99 of all"]),
            mean(lambda run: run.summary.e2e_p95_ms / 1e3, 1),
            mean(lambda run: 1e2 * run.summary.cached_share, 1),
            mean(lambda run: run.summary.hotspot, 2),
        )


def over(found: Found, policy: str, rival: str, measure: str) -> Estimate:
    """The policy's measure over its rival's, paired by seed."""
    value = MEASURES[measure]
    return ratio([value(run) for run in found[policy]], [value(run) for run in found[rival]])


def verdicts(found: Found) -> str:
    lines = [
        (f"`{full}` over `{rival}`", *(told(over(found, full, rival, measure), 2) for measure in MEASURES))
        for full in FULL
        for rival in RIVALS
    ]
    pause_s = min(shortest_pause_s(each.moves) for full in FULL for each in found[full])
    pause = "none moved twice" if pause_s == np.inf else f"{pause_s:.1f} s"
    told_of = "copies count when they are done, so two that began T_cool apart may be nearer"
    return f"{table(('TTFT', *MEASURES), lines)}\n\nShortest time between two moves of one session: {pause}; {told_of}."


def sensitivity(scene: Scene, traffic: Workload, seed: int) -> str:
    lines = []
    for hot in HOT_TOKENS:
        cells = []
        for cool_s in COOL_DOWNS_S:
            summary = ran(f"ear+pull:hot_tokens={hot}:cool_down_s={cool_s}", scene, traffic, seed).summary
            cells.append(f"{summary.worst_worker_ttft_p90_ms:.0f} ({1e2 * summary.moves / summary.requests:.2f} %)")
        lines.append((f"{hot:,}", *cells))
    return table(("T_hot, tokens", *(f"T_cool {cool_s} s" for cool_s in COOL_DOWNS_S)), lines)


def picture(one: Ran, path: Path) -> None:
    """The paper's figure 10: tokens that wait for prefill at each engine over time, and the moves as arrows."""
    end_s = max(each.sent_ms + each.total_ms for each in one.answers) / 1e3
    step_s = end_s / 600
    waiting = np.zeros((ENGINES, 601))
    for each in one.answers:
        first, last = each.sent_ms / 1e3 / step_s, (each.sent_ms + each.first_token_ms) / 1e3 / step_s
        waiting[each.endpoint, int(first) : int(last) + 1] += each.prompt_tokens - each.cached_tokens
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(
        np.log10(1 + waiting),
        aspect="auto",
        origin="lower",
        cmap="magma_r",
        vmin=0,
        vmax=5,
        interpolation="nearest",
        extent=(0, end_s / 60, -0.5, ENGINES - 0.5),
    )
    bar = figure.colorbar(shown, ax=axes, label="tokens waiting for prefill")
    bar.set_ticks([0, 2, 3, 4, 5], labels=["0", "100", "1k", "10k", "100k"])
    places = {address: place for place, address in enumerate(e.address for e in alike(ENGINES).endpoints)}
    for at_ms, move in one.moves:
        at_min, source, target = at_ms / 6e4, places[move.source], places[move.target]
        axes.annotate(
            "", (at_min, target), (at_min, source), arrowprops={"arrowstyle": "->", "color": "tab:cyan", "lw": 1.4}
        )
    axes.set_xlabel("minutes")
    axes.set_ylabel("engine")
    axes.set_title(f"{len(one.moves)} moves off hot hosts")
    figure.savefig(path, dpi=110)


def write(seeds: int, draws: int, parts: Sequence[str]) -> None:
    """After each scene, so that a run that is broken off leaves those that it has done."""
    head = (
        "# Sessions that leave hot hosts, in simulated time",
        f"- Command: `python benchmarks/papers/ear_migration.py --seeds {seeds} --draws {draws}`\n"
        f"- Commit: {commit()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
        f"- World: {ENGINES} simulated engines, the defaults of `fairlead replay` where a scene says nothing else; KV "
        "travels at 10 GB/s, 98,304 bytes a token, 20 ms to set up\n"
        "- Traffic: `benchmarks/data/claude_code.jsonl.gz`, sessions drawn with Zipf weights of exponent 1, cut at "
        "65,536 tokens\n"
        "- Load: a share of what `least_request` can serve; policies that reuse more can serve more\n"
        f"- Seeds: 0 to {seeds - 1}; intervals are 95 % over them; ratios are paired by seed, below 1 the first "
        "is better. Rules of moving: the defaults (T_hot 16,384 tokens and twice the others' median, T_cool 60 s)\n"
        "- EAR's paper gives no figure for migration: its own was still to be measured (sections 4.3 and 5.6)",
    )
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "ear_migration.md").write_text("\n\n".join((*head, *parts)) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--draws", type=int, default=120, help="agents of each run")
    asked = parser.parse_args()
    seeds = range(asked.seeds)
    OUT.mkdir(parents=True, exist_ok=True)
    parts = []
    with Progress() as done:
        task = done.add_task("runs", total=len(SCENES) * len(POLICIES) * asked.seeds)
        for scene in SCENES:
            faster = scene.load * faster_at(scene, asked.draws)
            found: Found = {policy: [] for policy in POLICIES}
            for seed in seeds:
                traffic = workload(scene, seed, asked.draws, faster)
                for policy in POLICIES:
                    run = ran(policy, scene, traffic, seed)
                    found[policy].append(run if seed == 0 else run._replace(answers=()))
                    done.advance(task)
            requests = found["ear"][0].summary.requests
            parts.append(f"## {scene.name}: load {scene.load:g}, {scene.about}\n\nSome {requests:,} requests a run.")
            parts += [table(HEADS, rows(found)), verdicts(found)]
            if scene.name == "high":
                picture(found["ear+pull"][0], OUT / "ear_migration.png")
                parts.append("![Tokens waiting at each engine, and the moves](ear_migration.png)")
                parts.append("Worst engine's TTFT p90 in ms, and moves, of `ear+pull` with seed 0:")
                parts.append(sensitivity(scene, workload(scene, 0, asked.draws, faster), 0))
            write(asked.seeds, asked.draws, parts)


if __name__ == "__main__":
    main()
