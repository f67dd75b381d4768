"""Cascadia's planned cascade against single models, one fixed threshold and evenly divided GPUs, at equal quality.

    python benchmarks/papers/cascadia_single.py

Writes benchmarks/results/papers/cascadia_single.md. Two worlds: the models, GPUs and drawn sample of cascadia.py; and
three models of the lab with what they really answered (benchmarks/data/lab_judgements.jsonl), on one-core servers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import cascadia
import numpy as np

from fairlead.cascade.rows import ProfileRow, read_rows
from fairlead.errors import UserError
from fairlead.statistics import line_through
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.plan.allocation import by_dynamic_program
from fairlead.tools.plan.hardware import pipeline_slot_parameters, shapes_that_fit
from fairlead.tools.plan.make import make_plan
from fairlead.tools.plan.plan import Plan
from fairlead.tools.plan.prediction import Deployed, predict
from fairlead.tools.plan.routing import Profile, alone, route
from fairlead.tools.plan.sample import make_profile
from fairlead.tools.plan.search import Aim
from fairlead.tools.plan.settings import CascadeSettings, ModelSettings
from fairlead.tools.plan.workload import Stage

OUT = Path("benchmarks/results/papers/cascadia_single.md")
JUDGEMENTS = Path("benchmarks/data/lab_judgements.jsonl")
_SLO_SCALE = 5.0
_LAB_SERVERS = 12
_EXACT_MATCH_MS = 1.0

Plans = Mapping[float, Plan | None]  # by requests a second; None if the GPUs cannot carry the rate
P95 = Callable[[float], float]  # of requests a second; infinite for more than is carried


@dataclass(frozen=True)
class World:
    settings: CascadeSettings  # its rate is replaced by each of `rates_per_s`
    profile: Profile
    rates_per_s: tuple[float, ...]

    def planned(self, quality: float, rate_per_s: float, whole: bool) -> Plan | None:
        settings = self.settings.model_copy(update={"rate_per_s": rate_per_s})
        try:
            return make_plan(settings, self.profile, Aim(least_quality=quality), whole=whole).plan
        except UserError:
            return None

    def single_p95_ms(self, index: int, rate_per_s: float) -> float:
        return self._p95_ms(self.profile.of([index]), [self.settings.models[index]], (), None, rate_per_s)

    def cascade_p95_ms(self, thresholds: Sequence[float], gpus: Sequence[int] | None, rate_per_s: float) -> float:
        """p95 with this many GPUs for each model, or with the division that is best for these thresholds."""
        return self._p95_ms(self.profile, self.settings.models, thresholds, gpus, rate_per_s)

    def _p95_ms(
        self,
        profile: Profile,
        models: Sequence[ModelSettings],
        thresholds: Sequence[float],
        gpus: Sequence[int] | None,
        rate_per_s: float,
    ) -> float:
        routed, cluster, rate_per_ms = route(profile, thresholds), self.settings.gpus.cluster(), rate_per_s / 1000
        stages = [Stage(model.model(), cluster, profile, index) for index, model in enumerate(models)]
        tables = []
        for stage, part, share in zip(stages, routed.reached, routed.shares, strict=True):
            if share:
                stage.simulate(part, lambda: None)
            tables.append(stage.latency_ms(part, share * rate_per_ms))
        if gpus is None:
            allocation = by_dynamic_program(tables, routed.shares)
            if allocation is None:
                return float("inf")
            gpus = allocation.gpus
        deployed = []
        for stage, part, share, latency_ms, count in zip(
            stages, routed.reached, routed.shares, tables, gpus, strict=True
        ):
            if not np.isfinite(latency_ms[count]):
                return float("inf")
            strategy = stage.strategy(part, share * rate_per_ms, count)
            deployed.append(Deployed(stage.model, strategy, stage.carried(part, float(latency_ms[count]))))
        return predict(profile, routed, deployed, cluster, rate_per_ms, self.settings.judge_ms).end_to_end.p95_ms

    def unloaded_ms(self, index: int) -> float:
        """Mean time of a request alone on the smallest replica."""
        model, cluster = self.settings.models[index].model(), self.settings.gpus.cluster()
        prompts, answers = self.profile.prompt_tokens, self.profile.output_tokens[:, index]
        shape = shapes_that_fit(model, cluster, int((prompts + answers).max()))[0]
        parameters = pipeline_slot_parameters(model, shape, cluster)
        step_ms = parameters.step_overhead_ms + parameters.decode_ms_per_step
        return float((prompts * parameters.prefill_ms_per_token + answers * step_ms).mean())


def compared(world: World, qualities: Sequence[float]) -> list[str]:
    profile, rates = world.profile, world.rates_per_s
    count = len(profile.models)
    base_ms = float(np.mean([world.unloaded_ms(index) for index in range(count)]))
    head = (
        "quality", "served by", "quality reached", *(f"{rate:g}/s" for rate in rates),
        f"requests a second within scale {_SLO_SCALE:g}",
    )  # fmt: skip
    lines = []
    for quality in qualities:
        free = {rate: world.planned(quality, rate, whole=False) for rate in rates}
        whole = {rate: world.planned(quality, rate, whole=True) for rate in rates}
        for name, reached, p95_at in ways(world, quality, free, whole):
            seen = {rate: p95_at(rate) for rate in rates}
            most = max((rate for rate, ms in seen.items() if ms <= _SLO_SCALE * base_ms), default=0.0)
            scales = (f"{ms / base_ms:.1f}" if np.isfinite(ms) else "-" for ms in seen.values())
            lines.append((f"{quality:.1f}", name, reached, *scales, f"{most:g}"))
        used = (" + ".join(stage.model for stage in plan.stages) if plan else "-" for plan in free.values())
        lines.append((f"{quality:.1f}", "(models that the plan over all subsets uses)", "", *used, ""))
    slo = f"An SLO of scale 1 is {base_ms:,.0f} ms, the mean time of a request alone on one replica of each model."
    singles = ", ".join(f"{model} {alone(profile, index):.1f}" for index, model in enumerate(profile.models))
    return [f"{slo} Quality alone: {singles}.", "", table(head, lines), ""]


def ways(world: World, quality: float, free: Plans, whole: Plans) -> list[tuple[str, str, P95]]:
    """Name, quality reached in words, and p95 by rate, of all that reach the quality."""
    profile, count = world.profile, len(world.profile.models)
    at_ease = whole[world.rates_per_s[0]]
    assert at_ease is not None, "the lowest rate is carried"
    gpus = world.settings.gpus.count
    even = [gpus // count] * (count - 1)
    even.append(gpus - sum(even))
    levels = np.unique(profile.score)
    level = next(float(each) for each in levels if route(profile, [float(each)] * (count - 1)).quality >= quality)
    fixed = [level] * (count - 1)
    found: list[tuple[str, str, P95]] = [
        ("plan over all subsets", f">= {quality:.1f}", partial(p95_of, free)),
        ("planned cascade of all models", f">= {quality:.1f}", partial(p95_of, whole)),
        (
            f"one threshold, {level:g}, GPUs planned for it",
            f"{route(profile, fixed).quality:.1f}",
            partial(world.cascade_p95_ms, fixed, None),
        ),
        (
            f"planned thresholds, GPUs {' + '.join(map(str, even))}",
            f"{at_ease.quality:.1f}",
            partial(world.cascade_p95_ms, at_ease.thresholds, even),
        ),
    ]
    found += [
        (f"{model} alone", f"{alone(profile, index):.1f}", partial(world.single_p95_ms, index))
        for index, model in enumerate(profile.models)
        if alone(profile, index) >= quality
    ]
    return found


def p95_of(plans: Plans, rate_per_s: float) -> float:
    plan = plans[rate_per_s]
    return float("inf") if plan is None else plan.end_to_end.p95_ms


def drawn() -> tuple[World, list[float]]:
    everything = slice(0, 3)
    profile = cascadia.sample(everything)
    utopia, nadir = alone(profile, 2), alone(profile, 0)
    world = World(cascadia.settings(32, 1.0, everything), profile, (16.0, 48.0))
    return world, [nadir + part * (utopia - nadir) for part in (0.6, 0.9)]


def recorded() -> tuple[World, list[float]]:
    """At the quality that the largest model reaches alone: a cascade with an exact judge can keep it."""
    rows = read_rows(JUDGEMENTS)
    names = list(dict.fromkeys(row.model for row in rows))
    profile = make_profile(rows, names, str(JUDGEMENTS))
    settings = CascadeSettings.model_validate(
        {
            "gpus": {"count": _LAB_SERVERS, "memory_gib": 1.0, "per_server": 1},
            "models": [lab_model(name, [row for row in rows if row.model == name]) for name in names],
            "rate_per_s": 1.0,
            "judge_ms": _EXACT_MATCH_MS,
        }
    )
    carried = _LAB_SERVERS * 1000 / World(settings, profile, ()).unloaded_ms(len(names) - 1)
    rates = tuple(round(carried * load) for load in (0.3, 0.6, 0.9, 1.2, 1.6, 2.0))
    return World(settings, profile, rates), [alone(profile, len(names) - 1)]


def lab_model(name: str, rows: Sequence[ProfileRow]) -> dict[str, object]:
    """One core is one GPU here. Times are a line through the medians of the recorded latencies by prompt length."""
    by_length: dict[int, list[float]] = {}
    for row in rows:
        by_length.setdefault(row.prompt_tokens, []).append(row.latency_ms)
    fixed_ms, slope = line_through([(tokens, median(times_ms)) for tokens, times_ms in by_length.items()])
    steps = float(np.mean([row.output_tokens for row in rows]))
    return {
        "name": name,
        "weights_gib": 0.01,
        "kv_kib_per_token": 8.0,
        "prefill_ms_per_token": slope,
        "decode_ms_per_step": 0.0,
        "step_overhead_ms": fixed_ms / steps,
        "tp_speedup": {1: 1.0},
        "max_pp": 1,
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    machine = this_machine()
    sections = []
    for title, (world, qualities) in (
        ("Drawn judgements, simulated H100s: 32 GPUs", drawn()),
        (f"Judgements of real models, {_LAB_SERVERS} servers of one core", recorded()),
    ):
        print(title, flush=True)
        sections += [f"## {title}", "", *compared(world, qualities)]
    facts = machine_facts("python benchmarks/papers/cascadia_single.py", cascadia.SEED, machine, os.getloadavg()[0])
    note = (
        "Paper (section 4): up to 4 times tighter SLOs (2.8 on average) than single models; dividing GPUs evenly\n"
        "costs up to 2.1 times (1.7 on average). Here: the SLO scale that 95 % of requests keep end to end, by\n"
        "requests a second (-: more than the GPUs carry). Real judgements: three models of the lab on the same\n"
        "questions with an exact-match judge, and their times as recorded; any threshold is the same one there."
    )
    report = "\n".join(["# Cascadia: against single models", "", facts, "", note, "", *sections])
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
