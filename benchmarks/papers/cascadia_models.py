"""How long planning takes by the number of models in a cascade, two to five, on 32 GPUs and one core.

    python benchmarks/papers/cascadia_models.py [MODELS ...]

Writes benchmarks/results/papers/cascadia_models.md. Times are of CPU, as other work on the machine would add to others.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.plan.make import Made, make_plan
from fairlead.tools.plan.routing import Profile, alone
from fairlead.tools.plan.search import Aim
from fairlead.tools.plan.settings import CascadeSettings

OUT = Path("benchmarks/results/papers/cascadia_models.md")
SEED = 7
GPUS = 32
_REQUESTS = 400
_RATE_PER_S = 16.0
_JUDGE_MS = 270.0  # the paper's appendix H
_BILLIONS = (1.5, 8.0, 32.0, 70.0, 180.0)  # of parameters, in FP8 beyond 32
_FP8_FROM = 70.0
_KV_KIB = (28.0, 128.0, 256.0, 320.0, 400.0)
_ABILITY = (0.35, 0.5, 0.65, 0.8, 0.93)
_CHOSEN = {2: (1, 4), 3: (1, 3, 4), 4: (0, 1, 3, 4), 5: (0, 1, 2, 3, 4)}
_H100_TFLOPS, _H100_GIB_PER_S = 990.0 * 0.45, 3120.0 * 0.6  # at the fractions that engines commonly reach


def settings(chosen: tuple[int, ...]) -> CascadeSettings:
    models = []
    for index in chosen:
        billions = _BILLIONS[index]
        weights_gib = billions * (1 if billions >= _FP8_FROM else 2) / 1.074
        models.append(
            {
                "name": f"{billions:g}b",
                "weights_gib": weights_gib,
                "kv_kib_per_token": _KV_KIB[index],
                "prefill_ms_per_token": 2 * billions / _H100_TFLOPS,
                "decode_ms_per_step": weights_gib / _H100_GIB_PER_S * 1000,
                "decode_ms_per_sequence": 0.03,
            }
        )
    gpus = {"count": GPUS, "memory_gib": 80}
    return CascadeSettings.model_validate(
        {"gpus": gpus, "models": models, "rate_per_s": _RATE_PER_S, "judge_ms": _JUDGE_MS}
    )


def sample(chosen: tuple[int, ...]) -> Profile:
    """Judged with all whole numbers from 0 to 100. Harder requests are longer, and larger models better at all."""
    rng = np.random.default_rng(SEED)
    difficulty = rng.beta(2, 2, _REQUESTS)
    columns = list(chosen)
    margin = 6 * (np.array(_ABILITY)[None] - difficulty[:, None]) + rng.normal(0, 0.8, (_REQUESTS, len(_ABILITY)))
    score = np.round(100 / (1 + np.exp(-margin)))[:, columns]
    prompts = np.maximum(20, rng.lognormal(6, 0.8, _REQUESTS) * (1 + difficulty / 2)).round()
    answers = rng.lognormal(5.5, 0.6, (_REQUESTS, len(_ABILITY))) * (1 + difficulty[:, None] / 2)
    names = tuple(f"{_BILLIONS[index]:g}b" for index in chosen)
    return Profile(names, prompts, np.maximum(5, answers).round()[:, columns], score, score)


def timed(world: CascadeSettings, profile: Profile, aim: Aim, *, whole: bool) -> tuple[Made, float]:
    began_s = time.process_time()
    made = make_plan(world, profile, aim, whole=whole)
    return made, time.process_time() - began_s


def row(count: int) -> str:
    world, profile = settings(_CHOSEN[count]), sample(_CHOSEN[count])
    quality = alone(profile, 0) + 0.75 * (alone(profile, -1) - alone(profile, 0))
    whole, whole_s = timed(world, profile, Aim(least_quality=quality), whole=True)
    free, free_s = timed(world, profile, Aim(least_quality=quality), whole=False)
    given = " + ".join(str(stage.gpus) for stage in whole.plan.stages)
    used = " + ".join(stage.model for stage in free.plan.stages)
    return f"| {count} | {whole_s:.1f} | {given} | {free_s:.1f} | {used} | {free.plan.end_to_end.p95_ms / 1000:.1f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, metavar="MODELS", help="how many, 2 to 5")
    counts = parser.parse_args().counts or list(_CHOSEN)
    if not _CHOSEN.keys() >= set(counts):
        parser.error("there are cascades of 2 to 5 models")
    machine = this_machine()
    rows = [row(count) for count in counts]
    lines = [
        "# Cascadia: time to plan, by the number of models",
        "",
        machine_facts(
            " ".join(["python benchmarks/papers/cascadia_models.py", *sys.argv[1:]]), SEED, machine, os.getloadavg()[0]
        ),
        "",
        f"{GPUS} GPUs, {_RATE_PER_S:g} requests a second, a profile of {_REQUESTS} requests. For a quality: all models",
        "planned for, as the paper does; and with parts of the cascade and every model alone tried too.",
        "",
        "| models | s of CPU, all | GPUs given | s of CPU, any | models used | their p95 |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
