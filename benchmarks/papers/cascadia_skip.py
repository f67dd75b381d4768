"""A cascade that skips the first model if the capability table predicts that it fails, and one that does not.

    python benchmarks/papers/cascadia_skip.py

Writes benchmarks/results/papers/cascadia_skip.md. The sample is drawn: the small model's chance of a right answer falls
with the prompt's length, as in LAAR's tables, and the judge is an exact match. The table is counted on one half of the
sample, and the cascades are compared on the other, on the same replicas.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairlead.core.lengths import BUCKETS, bucket_of
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.plan.hardware import Shape
from fairlead.tools.plan.prediction import Deployed, predict
from fairlead.tools.plan.routing import Profile, Routed, route
from fairlead.tools.plan.settings import CascadeSettings

OUT = Path("benchmarks/results/papers/cascadia_skip.md")
SEED = 11
_REQUESTS = 3000
_RIGHT_AT_4K, _LOST_PER_DOUBLING = 0.9, 0.25
_LARGE_RIGHT = 0.95
_SKIP_BELOW = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)
_RATE_PER_S = 1.8  # the large model is then some 60 % busy without skipping
_JUDGE_MS = 50.0

SETTINGS = CascadeSettings.model_validate(
    {
        "gpus": {"count": 8, "memory_gib": 80},
        "rate_per_s": _RATE_PER_S,
        "models": [
            {"name": "small", "weights_gib": 15, "kv_kib_per_token": 128, "prefill_ms_per_token": 0.036,
             "decode_ms_per_step": 8.0},
            {"name": "large", "weights_gib": 65, "kv_kib_per_token": 256, "prefill_ms_per_token": 0.144,
             "decode_ms_per_step": 35.0},
        ],
    }
)  # fmt: skip
REPLICAS = (((Shape(1), 2),), ((Shape(2), 3),))


def sample(seed: int) -> Profile:
    rng = np.random.default_rng(seed)
    prompts = np.minimum(4096 * 2 ** rng.uniform(-1, 4, _REQUESTS), 60_000).round()
    small = np.clip(_RIGHT_AT_4K - _LOST_PER_DOUBLING * np.maximum(0, np.log2(prompts / 4096)), 0.02, 1)
    right = np.column_stack((rng.random(_REQUESTS) < small, rng.random(_REQUESTS) < _LARGE_RIGHT))
    answers = np.full((_REQUESTS, 2), 40.0)
    score = right.astype(np.float64) * 100
    return Profile(("small", "large"), prompts, answers, score, score)


def chances(profile: Profile) -> list[float]:
    """How often the small model was right, by length bucket."""
    buckets = np.array([bucket_of(int(tokens)) for tokens in profile.prompt_tokens])
    found = [profile.score[buckets == bucket, 0] for bucket in range(len(BUCKETS))]
    return [float(scores.mean()) / 100 if len(scores) else 1.0 for scores in found]


def skipping(profile: Profile, routed: Routed, table: list[float], below: float) -> Routed:
    """The same cascade, entered at the large model by requests whose bucket has too small a chance."""
    skips = np.array([table[bucket_of(int(tokens))] < below for tokens in profile.prompt_tokens])
    first, second = routed.reached
    reached = (first & ~skips, second | skips)
    quality = np.where(reached[1], profile.quality[:, 1], profile.quality[:, 0])
    return replace(routed, reached=reached, quality=float(quality.mean()))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    machine = this_machine()
    table, profile = chances(sample(SEED)), sample(SEED + 1)
    cascade = route(profile, (50.0,))
    deployed = [
        Deployed(model.model(), strategy, {shape: 1.0 for shape, _ in strategy})
        for model, strategy in zip(SETTINGS.models, REPLICAS, strict=True)
    ]
    lines = [
        "| skip_below | asked of small | asked of large | quality | mean, s | p50, s | p95, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for below in _SKIP_BELOW:
        routed = skipping(profile, cascade, table, below)
        seen = predict(profile, routed, deployed, SETTINGS.gpus.cluster(), _RATE_PER_S / 1000, _JUDGE_MS).end_to_end
        small, large = routed.shares
        lines.append(
            f"| {below:g} | {small:.0%} | {large:.0%} | {routed.quality:.1f} | {seen.mean_ms / 1000:.2f} "
            f"| {seen.p50_ms / 1000:.2f} | {seen.p95_ms / 1000:.2f} |"
        )
    found = ", ".join(f"{name} {chance:.0%}" for name, chance in zip(BUCKETS, table, strict=True) if chance < 1)
    facts = machine_facts("python benchmarks/papers/cascadia_skip.py", SEED, machine, os.getloadavg()[0])
    title = "# A cascade that starts where a right answer is likely"
    note = f"The small model's chance of a right answer, by length: {found}. The large model's: {_LARGE_RIGHT:.0%}."
    report = "\n".join([title, "", facts, "", note, "", *lines, ""])
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
