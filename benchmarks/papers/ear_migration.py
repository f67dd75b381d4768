"""EAR's second pillar in simulated time: sessions that leave hot endpoints, against sessions that never do.

    python benchmarks/papers/ear_migration.py [--seeds 10] [--draws 120] [--scene high] [--one-rule] [--out FILE]

Writes benchmarks/results/papers/ear_migration.md and ear_migration.png. What placement gains (a policy without moves
over the sticky hash) and what moves gain on top of it (with moves over the same policy without) are separate tables.
Agent sessions drawn with Zipf weights, the longest most often. In two scenes each agent is a session of its own; in the
others all agents of a recorded session share its id, so that a few sessions are more than one engine can serve. The
measures: the worst engine's p90 and p95 of TTFT, and the p95 and p99 of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from matplotlib.figure import Figure

from fairlead.core.facts import session_key
from fairlead.core.moves import Move
from fairlead.statistics import quantile
from fairlead.tools.bench.markdown import table
from fairlead.tools.estimates import Estimate, estimate, ratio
from fairlead.tools.origin import commit
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.claude_code import Sampling
from fairlead.tools.replay.moving import MovingSimulation
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.rows import LatencyTarget, Rows, RunSummary, summarise
from fairlead.tools.replay.run import Traffic, workload_of
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World, alike
from fairlead.tools.study import progress_bar, worker_processes

TRACE = "benchmarks/data/claude_code.jsonl.gz"
OUT = Path("benchmarks/results/papers")
ENGINES = 8
FULL = ("ear+pull", "ear+copy", "fairlead+pull")
BASELINES = ("session_affinity", "ear", "unified", "fairlead")
POLICIES = (*BASELINES, *FULL)
NAMES = {
    "session_affinity": "`session_affinity`: sticky by a hash",
    "ear": "`ear`: affinity only",
    "ear+pull": "`ear+pull`: the request waits for its KV",
    "ear+copy": "`ear+copy`: copied, then the binding flips",
}
HOT_TOKENS, COOL_DOWNS_S = (1024, 4096, 16_384, 65_536), (10, 60, 300)
SETTINGS_SEEDS: Final = 3


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


class Job(NamedTuple):
    policy: str
    scene: Scene
    seed: int
    draws: int
    faster: float


class Ran(NamedTuple):
    summary: RunSummary
    worst_p95_ms: float  # TTFT of the worst engine
    moves: Sequence[tuple[float, Move]]
    answers: Sequence[AttemptRecord]


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
    """The speed-up for a load of 1, defined by sessions with a skew of 1 and the first seed."""
    return faster_for(1.0, scene.world, workload(scene, 0, draws), read_policy_spec("least_request"))


def ran(policy: str, scene: Scene, traffic: Workload, seed: int) -> Ran:
    rows, answers = Rows(), []

    def sink(answer: AttemptRecord) -> None:
        rows.add(answer)
        answers.append(answer)

    simulation = read_policy_spec(policy).simulation(scene.world, traffic, seed, sink)
    simulation.run()
    summary = summarise(
        rows.frame(), simulation.counts, recorded_ms=traffic.span_ms, engines=ENGINES, target=LatencyTarget()
    )
    by_engine: dict[int, list[float]] = {}
    for each in answers:
        by_engine.setdefault(each.endpoint, []).append(each.first_token_ms)
    worst_p95_ms = max(quantile(times, 0.95) for times in by_engine.values())
    moves = simulation.moves if isinstance(simulation, MovingSimulation) else ()
    return Ran(summary, worst_p95_ms, moves, answers)


def done(job: Job) -> Ran:
    """Only the first seed's answers are kept, for the picture."""
    found = ran(job.policy, job.scene, workload(job.scene, job.seed, job.draws, job.faster), job.seed)
    return found if job.seed == 0 else found._replace(answers=())


def shortest_pause_s(moves: Sequence[tuple[float, Move]]) -> float:
    """Between two moves of one session; infinite if none moved twice."""
    last: dict[bytes, float] = {}
    shortest = float("inf")
    for at_ms, move in sorted(moves, key=lambda each: each[0]):
        shortest = min(shortest, (at_ms - last.get(move.session, -np.inf)) / 1e3)
        last[move.session] = at_ms
    return shortest


HEADS = (
    "Policy", "Moves, % of requests", "of them back", "Worst engine, TTFT p90 ms", "its p95 ms", "Median engine, p90",
    "TTFT p50 ms", "p95 ms", "p99 ms", "E2E p95 s", "Cached %", "Hotspot",
)  # fmt: skip


def rows(found: Found) -> Iterator[tuple[str, ...]]:
    for policy, runs in found.items():

        def mean(value: Callable[[Ran], float], digits: int = 0, of: Sequence[Ran] = tuple(runs)) -> str:
            return estimate([value(run) for run in of]).text(digits)

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


def over(found: Found, policy: str, baseline: str, measure: str) -> Estimate:
    """The policy's measure over its baseline's, paired by seed."""
    value = MEASURES[measure]
    return ratio([value(run) for run in found[policy]], [value(run) for run in found[baseline]])


def compared(found: Found, pairs: Sequence[tuple[str, str]]) -> str:
    lines = [
        (f"`{one}` over `{other}`", *(over(found, one, other, measure).text(2) for measure in MEASURES))
        for one, other in pairs
    ]
    return table(("TTFT", *MEASURES), lines)


def verdicts(found: Found) -> str:
    placement = [(policy, "session_affinity") for policy in BASELINES if policy != "session_affinity"]
    moves = [(full, full.split("+")[0]) for full in FULL]
    both = [(full, baseline) for full in FULL for baseline in ("session_affinity", "unified")]
    pause_s = min(shortest_pause_s(each.moves) for full in FULL for each in found[full])
    pause = "none moved twice" if pause_s == np.inf else f"{pause_s:.1f} s"
    told_of = "copies count when they are done, so two that began T_cool apart may be nearer"
    return (
        f"What placement alone gains:\n\n{compared(found, placement)}\n\n"
        f"What moves gain on top of it:\n\n{compared(found, moves)}\n\n"
        f"Both together:\n\n{compared(found, both)}\n\n"
        f"Shortest time between two moves of one session: {pause}; {told_of}."
    )


SETTINGS: Final = {
    f"ear+pull:hot_tokens={hot}:cool_down_s={cool_s}": hot for hot, cool_s in product(HOT_TOKENS, COOL_DOWNS_S)
}  # policies that differ in their rules of moving, with T_hot


def sensitivity(found: Found) -> str:
    """The p95 of all and the worst engine's p90 over those of `ear` without moves, for each setting."""
    cells: dict[int, list[str]] = {hot: [] for hot in HOT_TOKENS}
    for policy, hot in SETTINGS.items():
        runs, ratios = found[policy], []
        for measure in ("p95 of all", "worst engine's p90"):
            value = MEASURES[measure]
            ratios.append(ratio([value(run) for run in runs], [value(run) for run in found["ear"][: len(runs)]]).mean)
        moved = 1e2 * sum(run.summary.moves / run.summary.requests for run in runs) / len(runs)
        cells[hot].append(f"{ratios[0]:.2f}, {ratios[1]:.2f} ({moved:.2f} %)")
    lines = [(f"{hot:,}", *row) for hot, row in cells.items()]
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
    axes.set_title(f"{len(one.moves)} moves off hot endpoints")
    figure.savefig(path, dpi=110)


def write(out: Path, command: str, seeds: int, parts: Sequence[str]) -> None:
    """Written after each scene, so that an interrupted run keeps the finished ones."""
    head = (
        "# Sessions that leave hot endpoints, in simulated time",
        f"- Command: `python benchmarks/papers/ear_migration.py {command}`\n"
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
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join((*head, *parts)) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--draws", type=int, default=120, help="agents of each run")
    parser.add_argument("--scene", action="append", choices=[scene.name for scene in SCENES], help="all by default")
    parser.add_argument("--one-rule", action="store_true", help="of moving, the default; no table of others")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--out", type=Path, default=OUT / "ear_migration.md")
    asked = parser.parse_args()
    scenes = [scene for scene in SCENES if asked.scene is None or scene.name in asked.scene]
    command = " ".join(
        [f"--seeds {asked.seeds} --draws {asked.draws}", *(f"--scene '{name}'" for name in asked.scene or ())]
        + ["--one-rule"] * asked.one_rule
    )
    tried_seeds, parts = min(SETTINGS_SEEDS, asked.seeds), []
    settings = [] if asked.one_rule else list(SETTINGS)
    with progress_bar("runs") as progress, worker_processes(asked.jobs) as pool:
        each = len(POLICIES) * asked.seeds + len(settings) * tried_seeds
        task = progress.add_task("runs", total=len(scenes) * each)
        for scene in scenes:
            faster = scene.load * faster_at(scene, asked.draws)
            runs = [*product(POLICIES, range(asked.seeds)), *product(settings, range(tried_seeds))]
            jobs = [Job(policy, scene, seed, asked.draws, faster) for policy, seed in runs]
            found: Found = {}
            for job, run in zip(jobs, pool.map(done, jobs), strict=True):
                found.setdefault(job.policy, []).append(run)
                progress.advance(task)
            policies: Found = {policy: found[policy] for policy in POLICIES}
            requests = found["ear"][0].summary.requests
            parts.append(f"## {scene.name}: load {scene.load:g}, {scene.about}\n\nSome {requests:,} requests a run.")
            parts += [table(HEADS, rows(policies)), verdicts(found)]
            if scene.name == "high":
                picture(found["ear+pull"][0], asked.out.with_suffix(".png"))
                parts.append(f"![Tokens waiting at each engine, and the moves]({asked.out.stem}.png)")
            if settings:
                parts.append(
                    "Where moves pay: p95 of all and the worst engine's p90 with `ear+pull` over `ear` without moves, "
                    f"and the share of requests that moved, for other settings (seeds 0 to {tried_seeds - 1}):"
                )
                parts.append(sensitivity(found))
            write(asked.out, command, asked.seeds, parts)


if __name__ == "__main__":
    main()
