"""Adapters in simulated time: many adapters, few slots, and rules that know of slots or do not.

    python -m benchmarks.adapters [--seeds 4] > benchmarks/results/adapters.md

40 adapters are loaded and evicted over 4 engines of 4 slots; the adapter of a request is drawn by Zipf's law. Each
request is alone (no sessions), begins with its adapter's own 256 tokens of instructions, and arrives at random.

- `fairlead`: the default policy. It is told nothing of loads: it begins with its default and learns from first tokens.
- `fairlead, blind`: the same with `adapter_weight: 0`, so that only prefixes tie an adapter to an engine.
- `llm-d, blind`: queue 2, KV cache 2, prefix 3, as its optimized baseline weighs them, without its turn for uncached
  prompts.
- `llm-d, lora 1` and `lora 3`: the same with its lora-affinity-scorer at these weights: 1.0 where the adapter has
  requests; else 0.8 with a slot that no adapter with requests has; else 0.6 where it waits; else 0. Its own tests weigh
  all four scorers alike; no weight is published for use.
- `least_request`: fewest requests in flight.

llm-d's rules see reports that are 50 ms old at most, as it reads them; all others 250 ms, as Fairlead does by default.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from fairlead.core.candidates import Candidate
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Policy, Ranking
from fairlead.core.ranking import least_first
from fairlead.policies import build_policy
from fairlead.policies.llm_d import LlmD
from fairlead.statistics import quantile
from fairlead.tools.bench.markdown import table
from fairlead.tools.estimates import estimate, ratio
from fairlead.tools.origin import commit
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Conversation, Turn, Workload
from fairlead.tools.replay.world import Observation, World, alike
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.study import worker_processes

ADAPTERS, ENGINES, SLOTS = 40, 4, 4
BLOCK_TOKENS: Final = 64
SYSTEM_BLOCKS: Final = 4  # of an adapter's own instructions
REQUESTS: Final = 400
WARM: Final = 80  # not counted: the first requests load everything anew under any rule
CASES = ((1.0, 500.0, 4.0), (1.0, 100.0, 8.0))  # Zipf's exponent, ms a load, requests a second
NAMES = tuple(f"adapter-{number}" for number in range(ADAPTERS))


class LlmDLora(LlmD, frozen=True):
    """llm-d's scorers with its lora-affinity-scorer. Source: llm-d-router v0.10, pkg/epp/.../loraaffinity."""

    no_hit_lru_weight: float = 0.0
    lora_weight: float = 1.0
    known: dict[str, Endpoint] = {}  # noqa: RUF012 - filled by `one`: what engines report of adapters is in no candidate

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        scores = {ranked.candidate.address: -ranked.score for ranked in super().rank(request, candidates, rng).order}
        for candidate in candidates:
            scores[candidate.address] += self.lora_weight * self._affinity(request.adapter, candidate.address)
        return Ranking(least_first(candidates, lambda c: -scores[c.address], random_tie=rng))

    def _affinity(self, adapter: str, address: str) -> float:
        report = self.known[address].report
        if adapter in report.running_adapters:
            return 1.0
        if len({*report.running_adapters, *report.waiting_adapters}) < SLOTS:
            return 0.8
        return 0.6 if adapter in report.waiting_adapters else 0.0


class Rule(NamedTuple):
    policy: str
    parameters: dict[str, Any]
    scrape_s: float = 0.25


RULES: Final = {
    "fairlead": Rule("fairlead", {}),
    "fairlead, blind": Rule("fairlead", {"adapter_weight": 0.0}),
    "llm-d, blind": Rule("llm_d", {"no_hit_lru_weight": 0.0}, 0.05),
    "llm-d, lora 1": Rule("lora", {"lora_weight": 1.0}, 0.05),
    "llm-d, lora 3": Rule("lora", {"lora_weight": 3.0}, 0.05),
    "least_request": Rule("least_request", {}),
}


class Figures(NamedTuple):
    ttft_p95_ms: float
    ttft_p50_ms: float
    total_p95_ms: float
    loads: float  # of adapters, for each 100 requests


def workload(seed: int, rate: float, skew: float) -> Workload:
    """Open loop: arrivals by Poisson, lengths lognormal."""
    rng = Random(f"adapters {seed}")
    bounds = list(accumulate((number + 1) ** -skew for number in range(ADAPTERS)))
    conversations, at_ms = [], 0.0
    for number in range(REQUESTS):
        at_ms += 1e3 * rng.expovariate(rate)
        (adapter,) = rng.choices(range(ADAPTERS), cum_weights=bounds)
        prompt = SYSTEM_BLOCKS * BLOCK_TOKENS + max(16, round(rng.lognormvariate(5.5, 0.8)))
        output = max(8, round(rng.lognormvariate(4.6, 0.6)))
        own = (10**6 + 1000 * number, prompt // BLOCK_TOKENS - SYSTEM_BLOCKS)
        runs = ((1000 * adapter, SYSTEM_BLOCKS), own)
        conversations.append(Conversation(at_ms, (Turn(prompt, output, runs, model=NAMES[adapter]),)))
    return Workload("adapters", tuple(conversations), BLOCK_TOKENS)


def world(load_ms: float, scrape_s: float) -> World:
    engine = EngineParameters(adapter_slots=SLOTS, adapter_load_ms=load_ms)
    return msgspec.structs.replace(alike(ENGINES, engine), adapters=NAMES, observation=Observation(scrape_s=scrape_s))


def one(traffic: Workload, load_ms: float, rule: Rule, seed: int) -> Figures:
    rows: list[AttemptRecord] = []
    known: dict[str, Endpoint] = {}
    if rule.policy == "lora":
        policy: Policy = LlmDLora(known=known, **rule.parameters)
    else:
        policy = build_policy(rule.policy, rule.parameters)
    simulation = Simulation(world(load_ms, rule.scrape_s), traffic, policy, seed=seed, sink=rows.append)
    known |= simulation.router.pool.by_address
    simulation.run()
    counted = [row for row in rows if row.conversation >= WARM]
    first = [row.first_token_ms for row in counted]
    loads = sum(engine.adapters.loads for engine in simulation.engines)
    return Figures(
        quantile(first, 0.95),
        quantile(first, 0.5),
        quantile([row.total_ms for row in counted], 0.95),
        100 * loads / len(rows),
    )


HEADS: Final = (
    "Zipf", "Load, ms", "Requests/s", "Rule", "TTFT p95, ms", "p50", "End p95", "Loads per 100", "fairlead / rule",
)  # fmt: skip


def ran(what: tuple[float, float, float, str, int]) -> Figures:
    skew, load_ms, rate, name, seed = what
    return one(workload(seed, rate, skew), load_ms, RULES[name], seed)


def lines(seeds: Sequence[int], jobs: int) -> Iterator[tuple[str, ...]]:
    runs = [(*case, name, seed) for case in CASES for name in RULES for seed in seeds]
    with worker_processes(jobs) as pool:
        found = dict(zip(runs, pool.map(ran, runs), strict=True))
    for skew, load_ms, rate in CASES:
        ours = [found[skew, load_ms, rate, "fairlead", seed].ttft_p95_ms for seed in seeds]
        for name in RULES:
            of_rule = [found[skew, load_ms, rate, name, seed] for seed in seeds]
            times = [f"{estimate([run[column] for run in of_rule]).mean:,.0f}" for column in range(3)]
            loads = f"{estimate([run.loads for run in of_rule]).mean:.1f}"
            against = ratio(ours, [run.ttft_p95_ms for run in of_rule])
            interval = against.text(2)
            yield f"{skew:g}", f"{load_ms:g}", f"{rate:g}", name, *times, loads, "" if name == "fairlead" else interval


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    seeds = range(asked.seeds)
    print("# Adapters: what it brings to know of their slots\n")
    print(f"- Command: `python -m benchmarks.adapters --seeds {len(seeds)}`")
    print(f"- Commit: {commit()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; simulated time, so the machine plays no part")
    print(f"- Seeds: 0 to {len(seeds) - 1}, each with arrivals, adapters and lengths of its own")
    print(f"- {REQUESTS:,} requests a run; the times of the first {WARM} are not counted, their loads are")
    print("- Ratios are of TTFT p95, paired by seed, with 95 % intervals: below 1 `fairlead` is quicker\n")
    print((__doc__ or "").split("\n\n", 2)[2])
    print(table(HEADS, list(lines(seeds, asked.jobs))))


if __name__ == "__main__":
    main()
