"""`fairlead plan watch` through a shift: traffic gets harder at once, and the thresholds in force are followed.

    python benchmarks/papers/cascadia_shift.py [--seeds 10]

Writes benchmarks/results/papers/cascadia_shift.md. Windows of sampled requests go to the replanner that `plan watch`
runs; what its thresholds are worth is read from requests that it never saw.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from fairlead.cascade.rows import ProfileRow
from fairlead.errors import UserError
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.plan.make import make_plan
from fairlead.tools.plan.replanning import Replanner, Window, accepted_quality
from fairlead.tools.plan.sample import make_profile
from fairlead.tools.plan.search import Aim
from fairlead.tools.plan.settings import CascadeSettings

OUT = Path("benchmarks/results/papers/cascadia_shift.md")
MODELS: Final = ("small", "large")
SAMPLED: Final = (50, 200, 800)  # requests in a window
TARGET: Final = 75.0
WINDOWS: Final = 12
SHIFTS_AT: Final = 3
_EASY, _HARD = (2.0, 2.0), (3.5, 2.0)  # of the beta distribution of difficulty
_UNSEEN: Final = 20_000
_WINDOW_S, _RATE_PER_S = 60.0, 120.0
WORLD: Final = CascadeSettings.model_validate(
    {
        "gpus": {"count": 4, "memory_gib": 80},
        "rate_per_s": _RATE_PER_S,
        "models": [
            {
                "name": name, "weights_gib": 10, "kv_kib_per_token": 50, "prefill_ms_per_token": 0.05,
                "decode_ms_per_step": step_ms, "max_pp": 1, "tp_speedup": {1: 1.0},
            }
            for name, step_ms in (("small", 4.0), ("large", 12.0))
        ],
    }
)  # fmt: skip


def rows(count: int, difficulty: tuple[float, float], rng: np.random.Generator, window: int = 0) -> list[ProfileRow]:
    """Requests that both models have answered, with a judge's score of 0 to 100."""
    hard = rng.beta(*difficulty, count)
    margin = 6 * (np.array((0.5, 0.95))[None] - hard[:, None]) + rng.normal(0, 0.8, (count, 2))
    scores = np.round(100 / (1 + np.exp(-margin)))
    prompts = np.maximum(20, rng.lognormal(5, 0.8, count)).astype(int)
    answers = np.maximum(5, rng.lognormal(2.5, 0.6, (count, 2))).astype(int)
    return [
        ProfileRow(
            request=f"{window}.{number}",
            model=model,
            prompt_tokens=int(prompts[number]),
            output_tokens=int(answers[number, column]),
            latency_ms=1.0,
            score=float(scores[number, column]),
        )
        for number in range(count)
        for column, model in enumerate(MODELS)
    ]


def course(sampled: int, seed: int) -> Iterator[tuple[float, bool]]:
    """For each window, the true quality of the thresholds in force while it lasts, and whether it ends with a plan."""
    rng = np.random.default_rng((seed, sampled))
    before = rows(800, _EASY, rng)
    aim = Aim(least_quality=TARGET)
    thresholds: Sequence[float] = make_plan(WORLD, make_profile(before, MODELS, "it"), aim, whole=True).plan.thresholds
    planner = Replanner(WORLD, aim, before)
    planner.follow(thresholds)
    unseen = {kind: rows(_UNSEEN, kind, rng) for kind in (_EASY, _HARD)}
    for window in range(WINDOWS):
        kind = _EASY if window < SHIFTS_AT else _HARD
        true = fmean(accepted_quality(unseen[kind], MODELS, thresholds))
        due = planner.seen(Window(_WINDOW_S, _RATE_PER_S, rows(sampled, kind, rng, window)))
        if due:
            try:
                thresholds = planner.plan().thresholds.thresholds
            except UserError:
                due = []
        yield true, bool(due)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    machine, lines = this_machine(), []
    for sampled in SAMPLED:
        courses = [list(course(sampled, seed)) for seed in range(seeds)]
        by_window = [[each[window][0] for each in courses] for window in range(WINDOWS)]
        planned = [sum(each[window][1] for each in courses) for window in range(WINDOWS)]
        lines.append((str(sampled), "quality", *[f"{fmean(each):.1f} ({min(each):.1f})" for each in by_window]))
        lines.append((str(sampled), "new plans", *[str(each) for each in planned]))
        print(*lines[-2:], sep="\n", flush=True)
    heads = ("Sampled in a window", "", *[f"{window + 1}" for window in range(WINDOWS)])
    facts = machine_facts(f"python benchmarks/papers/cascadia_shift.py --seeds {seeds}", 0, machine, os.getloadavg()[0])
    text = f"""# Cascadia: a plan through a shift

{facts}

Two models, a quality of {TARGET:g} asked. From window {SHIFTS_AT + 1} on requests are harder. *Quality*: what the
thresholds in force give on {_UNSEEN:,} requests of the window's kind that the planner never saw, the mean over {seeds}
seeds and in brackets the least; a plan that a window leads to is in force from the next one on.

{table(heads, lines)}
"""
    OUT.write_text(text)


if __name__ == "__main__":
    main()
