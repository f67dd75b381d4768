"""Full EAR against its parts and our default over the skew of sessions and the load, in simulated time.

    python benchmarks/papers/ear_skew.py [--seeds 10] [--draws 30]

Writes benchmarks/results/papers/ear_skew.md. The world is a scene of ear_migration.py: small caches, tools that
think little, agents that share their session's id. Loads are defined by sessions with a skew of 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from ear_migration import ENGINES, MEASURES, OUT, SCENES, Found, faster_at, over, ran, workload

from fairlead.tools.bench.markdown import table
from fairlead.tools.estimates import estimate
from fairlead.tools.origin import commit
from fairlead.tools.study import progress_bar

SCENE = next(scene for scene in SCENES if scene.name == "small caches")
SKEWS, LOADS = (0.8, 1.2, 1.6), (0.7, 1.2, 1.8)  # of the Zipf weights; of what least_request can serve
FULL = "ear+pull"
BASELINES = {"session_affinity": "sticky", "unified": "unified", "ear": "without moves", "fairlead": "fairlead"}
COMPARED = ("worst engine's p90", "p99 of all")
HEADS = (
    "Zipf", "Load", *(f"{name}, ms" for name in BASELINES.values()), "full EAR, ms",
    *(f"full / {name}, {what}" for name in BASELINES.values() for what in ("p90", "p99")),
)  # fmt: skip


def rows(seeds: Sequence[int], draws: int, step: Callable[[], None]) -> list[tuple[str, ...]]:
    faster, lines = faster_at(SCENE, draws), []
    for skew in SKEWS:
        for load in LOADS:
            found: Found = {policy: [] for policy in (*BASELINES, FULL)}
            for seed in seeds:
                traffic = workload(SCENE, seed, draws, load * faster, skew)
                for policy, runs in found.items():
                    runs.append(ran(policy, SCENE, traffic, seed)._replace(answers=()))
                    step()
            worst = [f"{estimate([MEASURES[COMPARED[0]](run) for run in runs]).mean:,.0f}" for runs in found.values()]
            ratios = [over(found, FULL, baseline, measure).text(2) for baseline in BASELINES for measure in COMPARED]
            lines.append((f"{skew:g}", f"{load:g}", *worst, *ratios))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--draws", type=int, default=30, help="agents of each run")
    asked = parser.parse_args()
    with progress_bar("runs") as done:
        task = done.add_task("runs", total=len(SKEWS) * len(LOADS) * (1 + len(BASELINES)) * asked.seeds)
        lines = rows(range(asked.seeds), asked.draws, lambda: done.advance(task))
    parts = (
        "# Full EAR over skew and load",
        f"- Command: `python benchmarks/papers/ear_skew.py --seeds {asked.seeds} --draws {asked.draws}`\n"
        f"- Commit: {commit()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
        f"- World: {ENGINES} simulated engines; {SCENE.about}\n"
        "- Sticky is `session_affinity`, full EAR `ear+pull`, without moves `ear`. Times are to the first token: in ms "
        "the worst engine's p90; ratios are of that and of the p99 of all, paired by seed, with intervals of 95 % over "
        f"seeds 0 to {asked.seeds - 1}: below 1 full EAR is quicker",
        table(HEADS, lines),
    )
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "ear_skew.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
