"""Tuners of weights on equal numbers of requests: GORGO's as published, and ours, which fixes its faults.

    python benchmarks/papers/tuner.py [--seeds 10] [--requests 4096] [--load 0.9 1.1]

Writes benchmarks/results/papers/tuner.md and tuner.png; with another load or number, tuner-load-<load>.md,
tuner-<requests>.md and so on. Long sessions in three regions with the paper's round trips; engines are of another speed
with each seed. Each tuner learns on one stream of requests, from the paper's two sets of weights and from one that is
drawn; what it would freeze is then judged on another stream. Live tuners try other weights on the stream itself; "from
the log" is `fairlead calibrate` and `fairlead tune` on the decisions that it left under the weights at the start.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final, Literal

from _three_regions import KV_TOKENS, REGIONS, WRONG, NoLearner, sessions, three_regions, wrong
from matplotlib.figure import Figure

from fairlead.core.policy import Policy
from fairlead.decision_log import files
from fairlead.policies import build_policy
from fairlead.statistics import quantile
from fairlead.tools.bench import markdown
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.decisions import read_decisions
from fairlead.tools.estimates import Estimate, estimate
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.logged import LoggedSimulation
from fairlead.tools.replay.observed import observed, world_yaml
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.run import Traffic
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.traces import read_trace
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World
from fairlead.tools.replay.world_file import read_world
from fairlead.tools.study import progress_bar
from fairlead.tools.tune.gorgo_hillclimb import BOX, Climbing
from fairlead.tools.tune.offline import TuningData, tune
from fairlead.tuning.fair import SCORED_QUANTILE
from fairlead.tuning.online import OnlineTuner, TunerSettings
from fairlead.tuning.weights import BOXES, Weights

OUT = Path("benchmarks/results/papers")
FIRST_SEED = 200  # ours were made on seeds from 900 on; earlier versions of them have seen 0 to 9 and 100 to 109
LOADS, REQUESTS = (0.9, 1.1), (4096,)  # shares of what least_request can serve; requests to learn on
SEEDS, PROPOSALS = (0,), 24  # of `fairlead tune`, which takes two seeds if not told: one is half the work

Tuner = Literal["none", "published", "ours, live", "ours, from the log", "from the log, wrong world"]
LIVE: Final[Tuner] = "ours, live"
LOGGED: Final[Tuner] = "ours, from the log"
WRONGLY: Final[Tuner] = "from the log, wrong world"
TUNERS: tuple[Tuner, ...] = ("none", "published", LIVE, LOGGED, WRONGLY)
START, FROZEN, DRAWN = "(0.5, 0.1), GORGO's start", "(0.276, 0.5), GORGO's frozen", "drawn from both boxes"
STARTS = (START, FROZEN, DRAWN)
COLOURS: dict[Tuner, str] = {"published": "#D55E00", LIVE: "#56B4E9", LOGGED: "#0072B2", WRONGLY: "#999999"}


@dataclass(frozen=True)
class Result:
    """One tuner, start and seed; p95 in ms."""

    start: Weights
    weights: Weights
    learning_total_ms: float
    learning_first_token_ms: float
    held_out_total_ms: float
    held_out_first_token_ms: float
    fitted: tuple[float, ...] = ()  # constants from the log over the true ones, in the order of CONSTANTS


CONSTANTS = ("prompt token", "step with one request", "step with ten", "round trip", "p95 to the end, replayed")
Results = dict[tuple[str, Tuner], list[Result]]  # by start and tuner, a result a seed


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=10, help="how many")
    arguments.add_argument(
        "--load", type=float, nargs="+", default=LOADS, help="shares of what least_request can serve"
    )
    arguments.add_argument("--requests", type=int, nargs="+", default=REQUESTS, help="that each tuner learns on")
    given = arguments.parse_args()
    conditions = [Condition(load, requests, given.seeds) for requests in given.requests for load in given.load]
    with progress_bar("runs") as progress:
        task = progress.add_task(
            "tuners", total=sum(given.seeds * len(STARTS) * len(each.tuners) for each in conditions)
        )
        for condition in conditions:
            machine = this_machine()
            results: Results = {(start, tuner): [] for start in STARTS for tuner in condition.tuners}
            for seed in condition.seeds:
                run_seed(condition, seed, results, lambda: progress.advance(task))
            write(results, condition, machine_facts(condition.command, FIRST_SEED, machine, machine.load_average))


@dataclass(frozen=True)
class Condition:
    """What all tuners are compared under."""

    load: float
    requests: int
    runs: int

    @property
    def seeds(self) -> range:
        return range(FIRST_SEED, FIRST_SEED + self.runs)

    @property
    def tuners(self) -> tuple[Tuner, ...]:
        """What a wrong world does is looked at under one condition."""
        return TUNERS if (self.load, self.requests) == (LOADS[0], REQUESTS[0]) else TUNERS[:-1]

    @property
    def command(self) -> str:
        return f"python benchmarks/papers/tuner.py --seeds {self.runs} --requests {self.requests} --load {self.load:g}"

    @property
    def stem(self) -> str:
        load = "" if self.load == LOADS[0] else f"-load-{self.load:g}"
        return f"tuner{load}" if self.requests == REQUESTS[0] else f"tuner{load}-{self.requests}"


def run_seed(condition: Condition, seed: int, results: Results, progress: Callable[[], None]) -> None:
    """All tuners from all starts in the world of `seed`."""
    world = three_regions(seed)
    learning, held_out = (sessions(f"{part} {seed}", condition.requests) for part in ("learning", "held out"))
    faster = faster_for(condition.load, world, learning, read_policy_spec("least_request"))
    streams = learning.faster(faster), held_out.faster(faster)
    for start in STARTS:
        with tempfile.TemporaryDirectory() as folder:
            untuned = logged(start, world, streams, seed, Path(folder))
            for tuner in condition.tuners:
                if tuner == "none":
                    found = untuned
                elif tuner in (LOGGED, WRONGLY):
                    found = from_log(untuned, tuner, world, streams[1], seed, Path(folder))
                else:
                    found = live(start, tuner, world, streams, seed)
                results[start, tuner].append(found)
                progress()


def write(results: Results, condition: Condition, facts: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    text = "\n".join(report(results, condition, facts))
    (OUT / f"{condition.stem}.md").write_text(text, encoding="utf-8")
    draw(results, OUT / f"{condition.stem}.png")
    print(text)


def start_of(name: str, seed: int) -> Weights:
    if name == START:
        return {"rtt_weight": 0.5, "queue_weight": 0.1}
    if name == FROZEN:
        return {"rtt_weight": 0.276, "queue_weight": 0.5}
    rng = Random(f"start {seed}")
    bounds = {each: (max(low, BOX[each][0]), min(high, BOX[each][1])) for each, (low, high) in BOXES["gorgo"].items()}
    return {each: low * (high / low) ** rng.random() for each, (low, high) in bounds.items()}


def live(name: str, tuner: Tuner, world: World, streams: tuple[Workload, Workload], seed: int) -> Result:
    """A tuner that tries weights on the requests themselves, and its trials affect them."""
    start = start_of(name, seed)
    plain = build_policy("gorgo", start)
    policy = build_policy("gorgo_hillclimb", start) if tuner == "published" else plain
    simulation, answers = _simulation(world, streams[0], policy, seed)
    if tuner == "published":
        climbing = simulation.router.tuner
        assert isinstance(climbing, Climbing)
        simulation.run()
        found = climbing.climb.best
    else:
        ours = OnlineTuner(policy, BOXES["gorgo"], Random(f"tuner {seed}"), TunerSettings())
        simulation.router.use(policy, ours)
        simulation.run()
        found = ours.incumbent
    return Result(start, found, *_p95s(answers), *held_out_p95s(found, world, streams[1], seed))


def logged(name: str, world: World, streams: tuple[Workload, Workload], seed: int, folder: Path) -> Result:
    """No tuner: the weights stay as they are.

    The decision log of the first stream, as `serve` would have written it, is in `folder`.
    """
    start = start_of(name, seed)
    answers: list[AttemptRecord] = []
    simulation = LoggedSimulation(world, streams[0], build_policy("gorgo", start), seed=seed, sink=answers.append)
    simulation.sidecars[0].learner = NoLearner()
    simulation.run()
    files.write(folder, simulation.rows)
    return Result(start, start, *_p95s(answers), *held_out_p95s(start, world, streams[1], seed))


def from_log(untuned: Result, tuner: Tuner, world: World, held_out: Workload, seed: int, folder: Path) -> Result:
    """Weights that `fairlead tune` finds in the log; the start if it reports no gain. It knows nothing of `world`.

    An engine's KV cache is as large as in `world`, as engines report it.
    """
    path = folder / "world.yaml"
    path.write_text(world_yaml(observed(read_decisions(folder), folder), KV_TOKENS, ()), encoding="utf-8")
    seen = read_world(path)
    if tuner == WRONGLY:
        seen = wrong(seen, Random(f"wrong {seed}"))
    policy, box = build_policy("gorgo", untuned.start), BOXES["gorgo"]
    found = tune("gorgo", policy, box, TuningData((Traffic(str(folder)),), seen, SEEDS), proposals=PROPOSALS, seed=seed)
    gained = found.held_out is not None and found.held_out.is_gain
    weights = found.best if gained else untuned.start
    times = held_out_p95s(weights, world, held_out, seed)
    known = replace(untuned, weights=weights, held_out_total_ms=times[0], held_out_first_token_ms=times[1])
    return replace(known, fitted=compared(seen, world, untuned, folder, seed))


def compared(seen: World, world: World, untuned: Result, folder: Path, seed: int) -> tuple[float, ...]:
    """CONSTANTS of the first engine as `seen` over those of `world`, and the log replayed over the log."""
    mine, true = (of.endpoints[0].engine for of in (seen, world))
    simulation, answers = _simulation(seen, read_trace(folder), build_policy("gorgo", untuned.start), seed)
    simulation.run()
    rtts = zip(seen.endpoints, REGIONS.values(), strict=True)
    return (
        mine.prefill_ms_per_token / true.prefill_ms_per_token,
        *(mine.decoding_step_ms(many) / true.decoding_step_ms(many) for many in (1, 10)),
        math.exp(fmean(math.log(seen.rtt(spec.region).at(0.0) / mean_ms) for spec, (mean_ms, _) in rtts)),
        _p95s(answers)[0] / untuned.learning_total_ms,
    )


def held_out_p95s(weights: Weights, world: World, held_out: Workload, seed: int) -> tuple[float, float]:
    simulation, answers = _simulation(world, held_out, build_policy("gorgo", weights), seed)
    simulation.run()
    return _p95s(answers)


def _simulation(world: World, workload: Workload, policy: Policy, seed: int) -> tuple[Simulation, list[AttemptRecord]]:
    answers: list[AttemptRecord] = []
    simulation = Simulation(world, workload, policy, seed=seed, sink=answers.append)
    simulation.sidecars[0].learner = NoLearner()
    return simulation, answers


def _p95s(answers: list[AttemptRecord]) -> tuple[float, float]:
    return (
        quantile([each.total_ms for each in answers], SCORED_QUANTILE),
        quantile([each.first_token_ms for each in answers], SCORED_QUANTILE),
    )


# ---- what came out ---------------------------------------------------------------------------------------------------

PAIRS: tuple[tuple[Tuner, Tuner], ...] = (
    (LOGGED, "published"), (LIVE, "published"), (WRONGLY, "published"), (LOGGED, "none"), (WRONGLY, "none"),
    (LIVE, "none"), ("published", "none"),
)  # fmt: skip
_WRONG_WORLD = (
    "In the wrong world each fitted constant, round trip and the size of caches is off by a factor of its own,",
    f"the exponential of a normal number of deviation {WRONG:g}.",
)
_TIMES = {
    "held_out_total_ms": "held out: end",
    "held_out_first_token_ms": "held out: first token",
    "learning_total_ms": "learning: end",
    "learning_first_token_ms": "learning: first token",
}


def report(results: Results, condition: Condition, facts: str) -> list[str]:
    """The page, line by line."""
    seconds = [
        [start, tuner, *[_seconds([getattr(each, field) for each in found]) for field in _TIMES]]
        for (start, tuner), found in results.items()
    ]
    pairs = [pair for pair in PAIRS if set(pair) <= set(condition.tuners)]
    against = [
        [" over ".join(pair), of, *[_ratio(results, of, pair, field) for field in _TIMES], _wins(results, of, pair)]
        for pair in pairs
        for of in (*STARTS, "all three")
    ]
    return [
        "# Tuners of weights on equal numbers of requests",
        "",
        facts,
        "",
        f"{condition.requests:,} requests to learn on and as many held out, {condition.runs} seeds, each a world",
        "of its own: three regions with the paper's round trips, engines of another speed. Load is",
        f"{condition.load:g} of what `least_request` can serve. Held out, weights are frozen. A live tuner routes",
        "the requests that it learns on, and pays for what it tries; from the log, the same requests are served",
        "with the weights at the start, and other weights are tried on their log, in a world whose constants were",
        "fitted to that log (`fairlead calibrate`, `fairlead tune`): no client pays. It keeps the start where",
        "`fairlead tune` reports no gain.",
        *(_WRONG_WORLD if WRONGLY in condition.tuners else ()),
        "",
        "## Against the published tuner, and against not tuning",
        "",
        "Ratios of p95, seed by seed, as geometric means; below 1 is better, a 95 % interval without 1 is no accident.",
        "In the lines of all three starts the unit is still the seed: the mean of its three logarithms. The last",
        "column counts the runs in which the first of the two was better held out, at the end, and in which it was",
        "worse; in the rest both found the same.",
        "",
        markdown.table(["", "from", *_TIMES.values(), "better, worse"], against),
        "",
        "## p95 in seconds, mean over seeds with 95 % intervals",
        "",
        markdown.table(["from", "tuner", *_TIMES.values()], seconds),
        "",
        "## What the log told of the engines, as a share of what they are",
        "",
        "Mean over seeds and starts, least and greatest. A round trip is compared with its region's mean; the p95 is",
        "of the log's requests, replayed under the weights at the start, over what it was.",
        "",
        markdown.table(["", *CONSTANTS], [_fitted(results, tuner) for tuner in condition.tuners[3:]]),
        "",
        "## Weights that would be frozen: RTT, queue",
        "",
        markdown.table(["seed", *_weight_heads(results)], list(_weight_rows(results))),
        "",
        "Paper: from (0.5, 0.1) to (0.276, 0.5) at p95 TTFT, frozen there. Tuners of `gorgo` hear the same requests;",
        "ours look at the end with the first token as a guard, in a box that holds the physical RTT weight (some 10",
        "here: a token takes some 0.1 ms). What differs from the paper: engines are simulated and equal, sessions are",
        "made up (growing prompts of one session, no shared system prompt).",
        "",
        f"![weights and times]({condition.stem}.png)",
        "",
    ]


def _seconds(values_ms: list[float]) -> str:
    return estimate([value / 1e3 for value in values_ms]).plus_minus(2)


def _logs(results: Results, start: str, pair: tuple[Tuner, Tuner], field: str) -> list[list[float]]:
    """By seed, the logarithms of the ratios from one start, or from all three."""
    starts = STARTS if start == "all three" else (start,)
    mine, theirs = ([[getattr(each, field) for each in results[name, tuner]] for name in starts] for tuner in pair)
    ratios = [[math.log(a / b) for a, b in zip(*of, strict=True)] for of in zip(mine, theirs, strict=True)]
    return [list(of_seed) for of_seed in zip(*ratios, strict=True)]


def _ratio(results: Results, start: str, pair: tuple[Tuner, Tuner], field: str) -> str:
    return Estimate(*map(math.exp, estimate([fmean(logs) for logs in _logs(results, start, pair, field)]))).text(2)


def _wins(results: Results, start: str, pair: tuple[Tuner, Tuner]) -> str:
    logs = [log for of_seed in _logs(results, start, pair, "held_out_total_ms") for log in of_seed]
    return f"{sum(log < 0 for log in logs)}, {sum(log > 0 for log in logs)} of {len(logs)}"


def _fitted(results: Results, tuner: Tuner) -> list[str]:
    every = [each.fitted for start in STARTS for each in results[start, tuner]]
    columns = zip(*every, strict=True)
    return [tuner, *[f"{fmean(column):.2f} ({min(column):.2f} to {max(column):.2f})" for column in columns]]


def _weight_heads(results: Results) -> list[str]:
    return ["drawn" if tuner == "none" else f"{tuner}, {start}" for start, tuner in _shown(results)]


def _weight_rows(results: Results) -> Iterator[list[str]]:
    for place in range(len(results[START, LIVE])):
        shown = [
            ", ".join(f"{value:.2g}" for value in results[each][place].weights.values()) for each in _shown(results)
        ]
        yield [str(FIRST_SEED + place), *shown]


def _shown(results: Results) -> list[tuple[str, Tuner]]:
    return [each for each in results if each[1] != WRONGLY and (each[1] != "none" or each[0] == DRAWN)]


def draw(results: Results, path: Path) -> None:
    figure = Figure(figsize=(12, 4.5), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    for (_, tuner), found in results.items():
        if tuner == "none":
            continue
        for each in found:
            way = [[weights[name] for weights in (each.start, each.weights)] for name in ("rtt_weight", "queue_weight")]
            left.plot(*way, color=COLOURS[tuner], linewidth=0.5, alpha=0.5)
            left.scatter(*[places[1] for places in way], color=COLOURS[tuner], s=14, zorder=3)
    for name in dict.fromkeys(tuner for _, tuner in results if tuner != "none"):
        left.scatter([], [], color=COLOURS[name], label=name)
    left.set(xscale="log", yscale="log", xlabel="rtt_weight", ylabel="queue_weight")
    left.legend(fontsize=8, frameon=False, title="from the start to what would be frozen", title_fontsize=8)
    bars: Any = right
    for place, found in enumerate(results.values()):
        total = estimate([each.held_out_total_ms / 1e3 for each in found])
        bars.barh(place, total.mean, xerr=[[total.mean - total.low], [total.high - total.mean]], color="#999999")
        bars.scatter(
            [each.held_out_total_ms / 1e3 for each in found], [place] * len(found), s=8, color="black", zorder=3
        )
    bars.set_yticks(range(len(results)), [f"{start}: {tuner}" for start, tuner in results])
    bars.invert_yaxis()
    bars.set(xlabel="p95 to the end on held-out requests, s", title="a dot a seed")
    figure.savefig(path)


if __name__ == "__main__":
    main()
