"""Tuners of weights on equal numbers of requests: GORGO's as published, and the one that mends its faults.

    python benchmarks/papers/tuner.py [--seeds 10] [--requests 8192] [--load 0.9]

Writes benchmarks/results/papers/tuner.md and tuner.png; with another load, tuner-load-<load>.md and .png. Long sessions
in three regions with the paper's round trips. Each tuner learns live on one stream of requests; what it would freeze is
then judged on another stream.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from rich.progress import Progress

from fairlead.bench import markdown
from fairlead.bench.machine import machine_facts, this_machine
from fairlead.bench.numbers import Estimate, estimate, ratio
from fairlead.core.evolution import Weights
from fairlead.core.facts import session_key
from fairlead.core.ranking import Policy
from fairlead.policies import build_policy
from fairlead.policies.gorgo_hillclimb import Climbing
from fairlead.replay.contest import contestant, faster_for
from fairlead.replay.network import drawn
from fairlead.replay.simulation import Answer, Simulation
from fairlead.replay.workload import Conversation, Turn, Workload
from fairlead.replay.world import EndpointSpec, Observation, World
from fairlead.simulate.parameters import EngineParameters
from fairlead.tuning.online import OnlineTuner, TunerSettings
from fairlead.tuning.weights import BOXES, with_weights
from fairlead.tuning.window import quantile

OUT = Path("benchmarks/results/papers")
LOAD = 0.9  # of what least_request can serve
BLOCK_TOKENS = 128
REGIONS = {"ashburn": (37.0, 8.0), "frankfurt": (279.0, 30.0), "seoul": (456.0, 120.0)}  # GORGO, figure 1; spreads ours
ENGINE = EngineParameters(prefill_ms_per_token=0.1, decode_ms_per_step=10.0, decode_ms_per_sequence=0.3)
KV_TOKENS = 600_000
START = {"rtt_weight": 0.5, "queue_weight": 0.1}  # GORGO's
PAPER_FROZEN = {"rtt_weight": 0.276, "queue_weight": 0.5}


@dataclass(frozen=True)
class Contender:
    """A policy, and how a tuner of it is made and asked for its weights; without one it keeps its own."""

    name: str
    policy: str
    start: Weights
    tuned: bool = True


CONTENDERS = (
    Contender("gorgo (0.5, 0.1)", "gorgo", START, tuned=False),
    Contender("published tuner from (0.5, 0.1)", "gorgo_hillclimb", START),
    Contender("our tuner from (0.5, 0.1)", "gorgo", START),
    Contender("gorgo (0.276, 0.5)", "gorgo", PAPER_FROZEN, tuned=False),
    Contender("published tuner from (0.276, 0.5)", "gorgo_hillclimb", PAPER_FROZEN),
    Contender("our tuner from (0.276, 0.5)", "gorgo", PAPER_FROZEN),
    Contender("fairlead (1, 1)", "fairlead", {}, tuned=False),
    Contender("our tuner of fairlead from (1, 1)", "fairlead", {}),
)
# A tuner, what it is compared with, and what it started from.
TUNERS = (
    ("published tuner from (0.5, 0.1)", "published tuner from (0.5, 0.1)", "gorgo (0.5, 0.1)"),
    ("our tuner from (0.5, 0.1)", "published tuner from (0.5, 0.1)", "gorgo (0.5, 0.1)"),
    ("published tuner from (0.276, 0.5)", "published tuner from (0.276, 0.5)", "gorgo (0.276, 0.5)"),
    ("our tuner from (0.276, 0.5)", "published tuner from (0.276, 0.5)", "gorgo (0.276, 0.5)"),
    ("our tuner of fairlead from (1, 1)", "published tuner from (0.5, 0.1)", "fairlead (1, 1)"),
)
COLOURS = ("#56B4E9", "#D55E00", "#0072B2", "#E69F00", "#009E73")


@dataclass(frozen=True)
class Result:
    """One contender and seed; p95 in ms."""

    weights: Weights
    tuning_total_ms: float
    tuning_first_token_ms: float
    held_out_total_ms: float
    held_out_first_token_ms: float


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--load", type=float, default=LOAD, help="share of what least_request can serve")
    arguments.add_argument("--requests", type=int, default=8192, help="that each tuner learns on")
    given = arguments.parse_args()
    machine = this_machine()
    results: dict[str, list[Result]] = {contender.name: [] for contender in CONTENDERS}
    with Progress() as progress:
        task = progress.add_task("tuners", total=given.seeds * len(CONTENDERS))
        for seed in range(given.seeds):
            world = three_regions(seed)
            learning, held_out = (sessions(f"{part} {seed}", given.requests) for part in ("learning", "held out"))
            faster = faster_for(given.load, world, learning, contestant("least_request"))
            for contender in CONTENDERS:
                results[contender.name].append(
                    judged(contender, world, learning.faster(faster), held_out.faster(faster), seed)
                )
                progress.advance(task)
    command = (
        f"python benchmarks/papers/tuner.py --seeds {given.seeds} --requests {given.requests} --load {given.load:g}"
    )
    facts = machine_facts(command, 0, machine, machine.load_average)
    stem = "tuner" if given.load == LOAD else f"tuner-load-{given.load:g}"
    text = "\n".join(report(results, given, facts, stem))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{stem}.md").write_text(text, encoding="utf-8")
    draw(results, OUT / f"{stem}.png")
    print(text)


def three_regions(seed: int) -> World:
    rng = Random(f"regions {seed}")
    return World(
        tuple(
            EndpointSpec(f"10.0.0.{number}:8000", region=region, engine=ENGINE, kv_tokens=KV_TOKENS)
            for number, region in enumerate(REGIONS, start=1)
        ),
        regions={name: drawn(mean, deviation, rng) for name, (mean, deviation) in REGIONS.items()},
        # Every first token is seen: the published tuner needs it.
        observation=Observation(messages_per_second=1e9),
    )


def sessions(name: str, requests: int) -> Workload:
    """Growing conversations that repeat what was said, of some 15,000 tokens in the mean; the rate is set later."""
    rng = Random(name)
    conversations: list[Conversation] = []
    now_ms, total, number = 0.0, 0, 0
    while total < requests:
        number += 1
        now_ms += rng.expovariate(1 / 1000.0)
        tokens = int(rng.lognormvariate(8.6, 0.7)) + 500
        turns = []
        for turn in range(min(1 + int(rng.expovariate(1 / 7.0)), requests - total)):
            answer = min(1000, 1 + int(rng.lognormvariate(5.0, 0.8)))
            runs = ((number << 20, tokens // BLOCK_TOKENS),)
            think_ms = 1e3 * rng.expovariate(1 / 15.0) if turn else 0.0
            turns.append(Turn(tokens, answer, runs, think_ms))
            tokens += answer + int(rng.lognormvariate(7.0, 0.9))
            if tokens > 60_000:
                break
        total += len(turns)
        key = session_key(f"{name} {number}".encode())
        conversations.append(Conversation(now_ms, tuple(turns), key, sum(turn.think_ms for turn in turns)))
    return Workload(name, tuple(conversations), BLOCK_TOKENS)


def judged(contender: Contender, world: World, learning: Workload, held_out: Workload, seed: int) -> Result:
    policy = build_policy(contender.policy, contender.start)
    weights: Callable[[], Weights] = dict
    simulation, answers = _simulation(world, learning, policy, seed)
    if contender.tuned and contender.policy == "gorgo_hillclimb":
        climbing = simulation.router.tuner
        assert isinstance(climbing, Climbing)
        weights = lambda: climbing.climb.best  # noqa: E731 - it is asked when the run is over
    elif contender.tuned:
        tuner = OnlineTuner(policy, BOXES[contender.policy], Random(f"tuner {seed}"), TunerSettings())
        simulation.router.use(policy, tuner)
        weights = lambda: tuner.incumbent  # noqa: E731
    simulation.run()
    found = weights()
    plain = build_policy("gorgo" if contender.policy == "gorgo_hillclimb" else contender.policy, contender.start)
    frozen, frozen_answers = _simulation(world, held_out, with_weights(plain, found), seed)
    frozen.run()
    return Result(found, *_p95s(answers), *_p95s(frozen_answers))


def _simulation(world: World, workload: Workload, policy: Policy, seed: int) -> tuple[Simulation, list[Answer]]:
    answers: list[Answer] = []
    return Simulation(world, workload, policy, seed=seed, sink=answers.append), answers


def _p95s(answers: list[Answer]) -> tuple[float, float]:
    return quantile([each.total_ms for each in answers]), quantile([each.first_token_ms for each in answers])


_HELD_OUT = ("held_out_total_ms", "held_out_first_token_ms")

# ---- what came out ---------------------------------------------------------------------------------------------------


def report(results: dict[str, list[Result]], given: argparse.Namespace, facts: str, stem: str) -> list[str]:
    rows = [
        [
            name,
            _seconds([each.tuning_total_ms for each in found]),
            _seconds([each.tuning_first_token_ms for each in found]),
            _seconds([each.held_out_total_ms for each in found]),
            _seconds([each.held_out_first_token_ms for each in found]),
        ]
        for name, found in results.items()
    ]
    return [
        "# Tuners of weights on equal numbers of requests",
        "",
        facts,
        "",
        f"{given.requests:,} requests to learn on and as many held out, {given.seeds} seeds, three regions,",
        f"{given.load:g} of what `least_request` can serve. p95 in seconds, mean over seeds with 95 % intervals.",
        "While it learns, a tuner also pays for what it tries; held out, its weights are frozen.",
        "",
        markdown.table(["", "learning: end", "learning: first token", "held out: end", "held out: first token"], rows),
        "",
        "## Against the published tuner, and against not tuning",
        "",
        "Ratios of p95 on held-out requests, seed by seed; below 1 is better, an interval without 1 is no accident.",
        "",
        markdown.table(
            [
                "",
                "end, over published",
                "first token, over published",
                "end, over its start",
                "first token, over its start",
            ],
            [
                [
                    tuned,
                    *[_ratio(results, tuned, published, field) for field in _HELD_OUT],
                    *[_ratio(results, tuned, start, field) for field in _HELD_OUT],
                ]
                for tuned, published, start in TUNERS
            ],
        ),
        "",
        f"Ours over published, both starts together: end {_pooled(results, 'held_out_total_ms')}, first token "
        f"{_pooled(results, 'held_out_first_token_ms')}.",
        "",
        "## Weights that would be frozen: RTT, queue",
        "",
        markdown.table(
            ["seed", *[tuned for tuned, _, _ in TUNERS]],
            [
                [seed, *[_weights(results[tuned][seed].weights) for tuned, _, _ in TUNERS]]
                for seed in range(given.seeds)
            ],
        ),
        "",
        "Paper: from (0.5, 0.1) to (0.276, 0.5) at p95 TTFT, frozen there. Tuners of `gorgo` hear the same requests;",
        "ours looks at the end with the first token as a guard, in a box that holds the physical RTT weight (10 here:",
        "a token takes 0.1 ms). What differs from the paper: engines are simulated and equal, sessions are made up",
        "(growing prompts of one session, no shared system prompt).",
        "",
        f"![weights and times]({stem}.png)",
        "",
    ]


def _seconds(values_ms: list[float]) -> str:
    found = estimate([value / 1e3 for value in values_ms])
    return f"{found.mean:.2f} ± {found.high - found.mean:.2f}"


def _ratio(results: dict[str, list[Result]], name: str, other: str, field: str) -> str:
    if name == other:
        return "1"
    mine, theirs = ([getattr(each, field) for each in results[which]] for which in (name, other))
    return _text(ratio(mine, theirs))


def _pooled(results: dict[str, list[Result]], field: str) -> str:
    """Of the two tuners of `gorgo` that begin alike: the mean of a seed's two ratios, over seeds."""
    pairs = [(tuned, published) for tuned, published, _ in TUNERS if tuned.startswith("our tuner from")]
    logs = [
        fmean(
            math.log(getattr(results[ours][seed], field) / getattr(results[theirs][seed], field))
            for ours, theirs in pairs
        )
        for seed in range(len(results[pairs[0][0]]))
    ]
    return _text(Estimate(*map(math.exp, estimate(logs))))


def _text(found: Estimate) -> str:
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def _weights(weights: Weights) -> str:
    return ", ".join(f"{value:.2g}" for value in weights.values())


def draw(results: dict[str, list[Result]], path: Path) -> None:
    figure = Figure(figsize=(12, 4.5), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, _, _), colour in zip(TUNERS, COLOURS, strict=True):
        weights = [each.weights for each in results[name]]
        left.scatter(
            [each["rtt_weight"] for each in weights],
            [each["queue_weight"] for each in weights],
            color=colour,
            label=name,
        )
    starts = (START, PAPER_FROZEN, {"rtt_weight": 1.0, "queue_weight": 1.0})
    left.scatter(
        [each["rtt_weight"] for each in starts],
        [each["queue_weight"] for each in starts],
        color="black",
        marker="*",
        s=80,
        label="starts",
    )
    left.set(
        xscale="log", yscale="log", xlabel="rtt_weight", ylabel="queue_weight", title="weights that would be frozen"
    )
    left.legend(fontsize=8)
    bars: Any = right
    for place, found in enumerate(results.values()):
        total = estimate([each.held_out_total_ms / 1e3 for each in found])
        bars.barh(place, total.mean, xerr=[[total.mean - total.low], [total.high - total.mean]], color="#999999")
        bars.scatter(
            [each.held_out_total_ms / 1e3 for each in found], [place] * len(found), s=8, color="black", zorder=3
        )
    bars.set_yticks(range(len(results)), list(results))
    bars.invert_yaxis()
    bars.set(xlabel="p95 to the end on held-out requests, s", title="a dot a seed")
    figure.savefig(path)


if __name__ == "__main__":
    main()
