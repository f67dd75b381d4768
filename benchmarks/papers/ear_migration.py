"""EAR's second pillar in simulated time: sessions that leave hot hosts, against sessions that never do.

    python benchmarks/papers/ear_migration.py [--seeds 5] [--draws 120]

Writes benchmarks/results/papers/ear_migration.md and ear_migration.png. Agent sessions drawn with Zipf weights, the
longest most often. In the first two scenes each agent is a session of its own; in the third all agents of a recorded
session share its id, so that a few sessions are more than one engine can serve.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress, TaskID

from fairlead.bench.commit import commit
from fairlead.bench.markdown import table
from fairlead.bench.numbers import Estimate, estimate, ratio
from fairlead.core.facts import session_key
from fairlead.core.migration import Move
from fairlead.replay.claude_code import Sampling
from fairlead.replay.contest import contestant, faster_for
from fairlead.replay.moving import MovingSimulation
from fairlead.replay.rows import Rows, Summary, Target, summarise
from fairlead.replay.run import Traffic, workload_of
from fairlead.replay.simulation import Answer
from fairlead.replay.workload import Workload
from fairlead.replay.world import alike

TRACE = "benchmarks/data/claude_code.jsonl.gz"
OUT = Path("benchmarks/results/papers")
ENGINES = 8
FULL = ("ear+pull", "ear+copy")
POLICIES = ("session_affinity", "ear", "unified", *FULL, "fairlead")
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


SCENES = (
    Scene("low", 0.3, False, "each agent a session of its own"),
    Scene("high", 1.4, False, "each agent a session of its own"),
    Scene("one id for many agents", 0.7, True, "the agents of a recorded session share its id"),
)


class Ran(NamedTuple):
    summary: Summary
    moves: Sequence[tuple[float, Move]]
    answers: Sequence[Answer]


def workload(scene: Scene, seed: int, draws: int, faster: float = 1.0) -> Workload:
    made = workload_of(Traffic(TRACE, Sampling(zipf=1.0, draws=draws), faster=faster), seed)
    if scene.shares_ids:
        return made
    own = [
        msgspec.structs.replace(each, session=session_key(str(number).encode()))
        for number, each in enumerate(made.conversations)
    ]
    return msgspec.structs.replace(made, conversations=tuple(own))


def ran(policy: str, traffic: Workload, seed: int) -> Ran:
    rows, answers = Rows(), []

    def sink(answer: Answer) -> None:
        rows.add(answer)
        answers.append(answer)

    simulation = contestant(policy).simulation(alike(ENGINES), traffic, seed, sink)
    simulation.run()
    summary = summarise(rows.frame(), simulation.counts, recorded_ms=traffic.span_ms, engines=ENGINES, target=Target())
    return Ran(summary, simulation.moves if isinstance(simulation, MovingSimulation) else (), answers)


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


def rows(found: dict[str, list[Ran]]) -> Iterator[tuple[str, ...]]:
    for policy, runs in found.items():
        summaries = [each.summary for each in runs]

        def mean(name: str, digits: int = 0, scale: float = 1.0, of: Sequence[Summary] = tuple(summaries)) -> str:
            return told(estimate([getattr(each, name) * scale for each in of]), digits)

        share = estimate([1e2 * each.moves / each.requests for each in summaries])
        yield (
            NAMES.get(policy, f"`{policy}`"),
            told(share, 2) if policy in FULL else "",
            mean("moves_back") if policy in FULL else "",
            mean("worst_worker_ttft_p90_ms"),
            mean("median_worker_ttft_p90_ms"),
            mean("ttft_p50_ms"),
            mean("ttft_p95_ms"),
            mean("e2e_p95_ms", 1, 1e-3),
            mean("cached_share", 1, 1e2),
            mean("hotspot", 2),
        )


HEADS = (
    "Policy", "Moves, % of requests", "of them back", "Worst worker, TTFT p90 ms", "Median worker", "TTFT p50 ms",
    "TTFT p95 ms", "E2E p95 s", "Cached %", "Hotspot",
)  # fmt: skip


def verdicts(found: dict[str, list[Ran]]) -> Iterator[str]:
    def times(policy: str, name: str) -> list[float]:
        return [getattr(each.summary, name) for each in found[policy]]

    for full in FULL:
        for rival in ("session_affinity", "ear", "unified"):
            worst, p95 = (
                told(ratio(times(full, name), times(rival, name)), 2)
                for name in ("worst_worker_ttft_p90_ms", "ttft_p95_ms")
            )
            yield f"- `{full}` over `{rival}`: worst worker {worst}; TTFT p95 of all {p95}"
    pause_s = min(shortest_pause_s(each.moves) for full in FULL for each in found[full])
    pause = "none moved twice" if pause_s == np.inf else f"{pause_s:.1f} s"
    yield f"- Shortest time between two moves of one session: {pause}"


def sensitivity(traffic: Workload, seed: int, done: Progress, task: TaskID) -> str:
    lines = []
    for hot in HOT_TOKENS:
        cells = []
        for cool_s in COOL_DOWNS_S:
            summary = ran(f"ear+pull:hot_tokens={hot}:cool_down_s={cool_s}", traffic, seed).summary
            cells.append(f"{summary.worst_worker_ttft_p90_ms:.0f} ({1e2 * summary.moves / summary.requests:.2f} %)")
            done.advance(task)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=120, help="agents of each run")
    asked = parser.parse_args()
    seeds = range(asked.seeds)
    parts = []
    with Progress() as done:
        task = done.add_task(
            "runs", total=len(SCENES) * len(POLICIES) * asked.seeds + len(HOT_TOKENS) * len(COOL_DOWNS_S)
        )
        for scene in SCENES:
            reference = workload(scene, 0, asked.draws)
            faster = faster_for(scene.load, alike(ENGINES), reference, contestant("least_request"))
            found: dict[str, list[Ran]] = {policy: [] for policy in POLICIES}
            for seed in seeds:
                traffic = workload(scene, seed, asked.draws, faster)
                for policy in POLICIES:
                    found[policy].append(ran(policy, traffic, seed))
                    done.advance(task)
            requests = found["ear"][0].summary.requests
            parts.append(f"## {scene.name}: load {scene.load:g}, {scene.about}\n\nSome {requests:,} requests a run.")
            parts.append(table(HEADS, rows(found)))
            parts.append("\n".join(verdicts(found)))
            if scene.name == "high":
                OUT.mkdir(parents=True, exist_ok=True)
                picture(found["ear+pull"][0], OUT / "ear_migration.png")
                parts.append("![Tokens waiting at each engine, and the moves](ear_migration.png)")
                traffic = workload(scene, 0, asked.draws, faster)
                parts.append(
                    "Worst worker's TTFT p90 in ms, and moves, of `ear+pull` with seed 0:\n\n"
                    + sensitivity(traffic, 0, done, task)
                )
    head = (
        "# Sessions that leave hot hosts, in simulated time",
        f"- Command: `python benchmarks/papers/ear_migration.py --seeds {asked.seeds} --draws {asked.draws}`\n"
        f"- Commit: {commit()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
        f"- World: {ENGINES} simulated engines, the defaults of `fairlead replay`; KV travels at 10 GB/s, 98,304 "
        "bytes a token, 20 ms to set up\n"
        "- Traffic: `benchmarks/data/claude_code.jsonl.gz`, sessions drawn with Zipf weights of exponent 1, cut at "
        "65,536 tokens\n"
        "- Load: a share of what `least_request` can serve; policies that reuse more can serve more\n"
        "- Intervals are 95 % over seeds; ratios are paired by seed, below 1 the first is better. Rules of moving: the "
        "defaults (T_hot 16,384 tokens and twice the others' median, T_cool 60 s)\n"
        "- EAR's paper gives no figure for migration: its own was still to be measured (sections 4.3 and 5.6)",
    )
    (OUT / "ear_migration.md").write_text("\n\n".join((*head, *parts)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
