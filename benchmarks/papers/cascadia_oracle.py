"""How close plans come to the best there is: random small cascades, each planned, and each searched exhaustively.

    python benchmarks/papers/cascadia_oracle.py [INSTANCES]

Writes benchmarks/results/papers/cascadia_oracle.md. The oracle simulates every division of the GPUs with every
threshold as a whole cascade; then its best and the plan are simulated once more, with draws that neither has seen.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from fairlead.errors import UserError
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.plan import replica_load
from fairlead.tools.plan.capacity import Strategy
from fairlead.tools.plan.hardware import Shape
from fairlead.tools.plan.make import make_plan
from fairlead.tools.plan.prediction import Deployed, Prediction, predict
from fairlead.tools.plan.routing import Profile, Routed, alone, route
from fairlead.tools.plan.search import Aim
from fairlead.tools.plan.settings import CascadeSettings

OUT = Path("benchmarks/results/papers/cascadia_oracle.md")
SEED = 11
_FINALISTS = 20
JUDGE_MS = 50.0
_ONE = Shape(1, 1)  # a replica is one GPU: then a division of the GPUs is a deployment


@dataclass(frozen=True)
class Instance:
    world: CascadeSettings
    profile: Profile
    quality: float  # asked


@dataclass(frozen=True)
class Compared:
    oracle_ms: float  # p95 of the slowest stage, both simulated anew
    plan_ms: float
    predicted_ms: float  # as the plan says

    @property
    def gap(self) -> float:
        return self.plan_ms / self.oracle_ms - 1


def instance(seed: int, *, requests: int = 80) -> Instance:
    rng = np.random.default_rng(seed)
    models, gpus = int(rng.integers(2, 4)), int(rng.integers(4, 7))
    speeds = np.cumsum(rng.uniform(3.0, 12.0, models))
    document = {
        "gpus": {"count": gpus, "memory_gib": 80},
        "rate_per_s": 1.0,
        "judge_ms": JUDGE_MS,
        "models": [
            {
                "name": f"m{index}",
                "weights_gib": 10,
                "kv_kib_per_token": 50,
                "prefill_ms_per_token": float(speed / 100),
                "decode_ms_per_step": float(speed),
                "decode_ms_per_sequence": float(rng.uniform(0.05, 0.6)),
                "max_pp": 1,
                "tp_speedup": {1: 1.0},
            }
            for index, speed in enumerate(speeds)
        ],
    }
    difficulty = rng.beta(2, 2, requests)
    ability = np.linspace(rng.uniform(0.3, 0.55), 0.93, models)
    margin = 6 * (ability[None] - difficulty[:, None]) + rng.normal(0, 0.8, (requests, models))
    step = 10 * (models - 1)
    score = np.round(100 / (1 + np.exp(-margin)) / step) * step
    prompts = np.maximum(20, rng.lognormal(5, 0.8, requests)).round()
    answers = np.maximum(5, rng.lognormal(3.0, 0.6, (requests, models))).round()
    profile = Profile(tuple(f"m{index}" for index in range(models)), prompts, answers, score, score)
    quality = alone(profile, 0) + rng.uniform(0.3, 0.8) * (alone(profile, -1) - alone(profile, 0))
    world = CascadeSettings.model_validate(document)
    # As many requests as keep the largest model busy on part of the GPUs.
    work_ms = float((prompts * world.models[-1].prefill_ms_per_token + answers[:, -1] * speeds[-1] / 6).mean())
    rate_per_s = rng.uniform(0.3, 0.9) * gpus * 1000 / work_ms
    return Instance(world.model_copy(update={"rate_per_s": rate_per_s}), profile, float(quality))


def simulated(
    case: Instance, routed: Routed, gpus: tuple[int, ...], *, count: int, seed: int = 20
) -> Prediction | None:
    """None where a stage has requests and no GPU."""
    if any(share and not given for share, given in zip(routed.shares, gpus, strict=True)):
        return None
    deployed = [
        Deployed(model.model(), _strategy(given), {_ONE: 1.0})
        for model, given in zip(case.world.models, gpus, strict=True)
    ]
    with mock.patch.object(replica_load, "_SEED", seed):
        return predict(
            case.profile, routed, deployed, case.world.gpus.cluster(), case.world.rate_per_s / 1000, JUDGE_MS, count
        )


def slowest_ms(prediction: Prediction) -> float:
    return max(stage.p95_ms for stage in prediction.stages)


def compared(seed: int, *, searched: int = 300, final: int = 4000) -> Compared | None:
    """None where no plan carries the requests at the quality."""
    case = instance(seed)
    try:
        plan = make_plan(case.world, case.profile, Aim(least_quality=case.quality), whole=True).plan
    except UserError:
        return None
    thresholds = plan.thresholds
    ours = simulated(case, route(case.profile, thresholds), tuple(s.gpus for s in plan.stages), count=final, seed=99)
    oracle = min(_again(case, sorted(_all(case, searched), key=lambda each: each[0])[:_FINALISTS], final))
    best = simulated(case, *oracle[2:], count=final, seed=99)
    if ours is None or best is None:
        return None
    return Compared(slowest_ms(best), slowest_ms(ours), max(stage.latency.p95_ms for stage in plan.stages))


def _all(case: Instance, count: int) -> Iterator[tuple[float, Routed, tuple[int, ...]]]:
    models, total = len(case.world.models), case.world.gpus.count
    divisions = [each for each in itertools.product(range(total + 1), repeat=models) if sum(each) == total]
    levels = [[0.0, *np.unique(case.profile.score[:, stage]).tolist()[1:]] for stage in range(models - 1)]
    for thresholds in itertools.product(*levels):
        routed = route(case.profile, thresholds)
        if routed.quality < case.quality:
            continue
        for gpus in divisions:
            prediction = simulated(case, routed, gpus, count=count)
            if prediction is not None:
                yield slowest_ms(prediction), routed, gpus


def _again(
    case: Instance, finalists: Sequence[tuple[float, Routed, tuple[int, ...]]], count: int
) -> Iterator[tuple[float, int, Routed, tuple[int, ...]]]:
    """The best of many short simulations is partly chance: the best few are simulated at length, with other draws."""
    for number, (_, routed, gpus) in enumerate(finalists):
        prediction = simulated(case, routed, gpus, count=count, seed=55)
        if prediction is not None:
            yield slowest_ms(prediction), number, routed, gpus


def _strategy(gpus: int) -> Strategy:
    return ((_ONE, gpus),) if gpus else ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("instances", nargs="?", type=int, default=30, metavar="INSTANCES", help="random cascades")
    instances = parser.parse_args().instances
    machine, began_s = this_machine(), time.process_time()
    found = [each for seed in range(SEED, SEED + instances) if (each := compared(seed)) is not None]
    gaps = sorted(each.gap for each in found)
    misses = sorted(each.predicted_ms / each.plan_ms - 1 for each in found)
    lines = [
        "# Cascadia: plans against an oracle",
        "",
        machine_facts(f"python benchmarks/papers/cascadia_oracle.py {instances}", SEED, machine, os.getloadavg()[0]),
        "",
        f"{len(found)} of {instances} random cascades (two or three models, 4 to 6 GPUs, a judge that says 0, 10, ...,",
        "100, or with three models 0, 20, ..., 100) could be planned. The oracle simulates every threshold with every",
        f"division of the GPUs, its best {_FINALISTS} at length. Both results are simulated again, with other draws.",
        f"{time.process_time() - began_s:.0f} s of CPU.",
        "",
        "| | least | median | 90 % | most |",
        "|---|---|---|---|---|",
        "| plan's p95 over the oracle's | " + " | ".join(f"{each:+.1%}" for each in _spread(gaps)) + " |",
        "| predicted over simulated p95 | " + " | ".join(f"{each:+.1%}" for each in _spread(misses)) + " |",
        "",
        f"Within 1 % of the oracle: {sum(gap <= 0.01 for gap in gaps)} of {len(gaps)}; within 5 %: "
        f"{sum(gap <= 0.05 for gap in gaps)}. Below it is chance: the oracle's choice is the best of hundreds of short",
        "simulations, simulated again; the plan's of a few.",
        "",
    ]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines))
    print("\n".join(lines))


def _spread(values: list[float]) -> list[float]:
    return [values[0], float(np.median(values)), float(np.quantile(values, 0.9)), values[-1]]


if __name__ == "__main__":
    main()
