"""Prompts computed at one engine and decoded at another, against a mixed pool of as many engines, in simulated time.

    python benchmarks/prefill_decode.py [--requests 1000] [--seeds 4] [--jobs 2] [--out FILE]

Writes benchmarks/results/prefill_decode.md. Three traffics of prompts that share nothing, of 1, 4 and 16 thousand
tokens with a short question to each long one; two loads, as shares of what the mixed pool serves; three networks.
In each pool the rule of the router is compared to never and always splitting: it should be as good as the better one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final, Literal, NamedTuple, cast
from unittest.mock import patch

import msgspec

from fairlead.core.endpoint import Role
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.core.prefill_decode import Hops, alone
from fairlead.core.router import Router
from fairlead.policies import build_policy
from fairlead.tools.bench.machine import this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.origin import commit, date
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.network import Link
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.prefill_decode import PrefillDecodeSimulation
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Conversation, Turn, Workload
from fairlead.tools.replay.world import World, alike
from fairlead.tools.study import progress_bar, worker_processes

OUT: Final = Path("benchmarks/results/prefill_decode.md")
ENGINES: Final = 8
BLOCK: Final = 64
KV_BYTES: Final = 131_072.0  # a token's, of an 8B model
PROMPTS: Final = (1_024, 4_096, 16_384)
LOADS: Final = (0.5, 0.85)
GBITS: Final = (1, 10, 100)
SHORT: Final = 256
ANSWER: Final = 256

Way = Literal["never", "always", "rule"]
WAYS: Final[tuple[Way, ...]] = ("never", "always", "rule")
POOLS: Final[dict[str, tuple[Role, ...]]] = {
    "2 prefill, 6 decode": ("prefill",) * 2 + ("decode",) * 6,
    "4 prefill, 4 decode": ("prefill",) * 4 + ("decode",) * 4,
    "7 both, 1 decode": ("both",) * 7 + ("decode",),
    "4 both, 4 decode": ("both",) * 4 + ("decode",) * 4,
    "1 prefill, 7 both": ("prefill",) + ("both",) * 7,
}
SHOWN: Final = tuple(POOLS)[:3]  # against the mixed pool
MIXED: Final = "8 mixed"


class Job(NamedTuple):
    prompt: int
    load: float
    gbits: int
    pool: str
    way: Way
    faster: float
    requests: int
    seed: int


class Result(NamedTuple):
    mean_ms: float
    ttft_p95_ms: float
    tpot_p90_ms: float
    splits: float  # share of the requests


class Forced(PrefillDecodeSimulation):
    """Every request goes one way, whatever it costs; or by the rule."""

    way: Way = "rule"

    def _choose(self, router: Router, facts: RequestFacts, now_s: float) -> InFlight | Refusal:
        if self.way == "never":
            return Simulation._choose(self, router, facts, now_s)
        return super()._choose(router, facts, now_s)

    def run(self) -> None:
        if self.way == "always":
            for sidecar in self.sidecars:
                always(sidecar.router)
        super().run()


def always(router: Router) -> None:
    """Let alone cost more than anything."""
    considered = router.prefill

    def forced(*known: Any) -> Any:
        with patch("fairlead.core.halves.alone", _endless):
            return considered(*known)

    cast(Any, router).prefill = forced


def _endless(*known: Any) -> Hops:
    return msgspec.structs.replace(alone(*known), stall_ms=inf)


def workload(prompt: int, requests: int, seed: int) -> Workload:
    """One request a second on average; every other one is a short question."""
    rng, at_ms, conversations = Random(f"{prompt} {seed}"), 0.0, []
    for number in range(requests):
        at_ms += rng.expovariate(1.0) * 1e3
        mean = prompt if number % 2 else SHORT
        blocks = max(1, round(mean * rng.uniform(0.5, 1.5) / BLOCK))
        answer = max(2, round(ANSWER * rng.uniform(0.5, 1.5)))
        turn = Turn(blocks * BLOCK + 1, answer, ((number * 1_000_000, blocks),))
        conversations.append(Conversation(at_ms, (turn,)))
    return Workload(f"prompts of {prompt}", tuple(conversations), BLOCK)


def world(pool: str, gbits: int) -> World:
    plain = alike(ENGINES)
    if pool == MIXED:
        return plain
    specs = [msgspec.structs.replace(e, role=role) for e, role in zip(plain.endpoints, POOLS[pool], strict=True)]
    return msgspec.structs.replace(
        plain, endpoints=tuple(specs), link=Link(bytes_per_token=KV_BYTES, bytes_per_s=(gbits or GBITS[0]) * 0.125e9)
    )


def run(job: Job) -> Result:
    sent = workload(job.prompt, job.requests, job.seed).faster(job.faster)
    answers: list[AttemptRecord] = []
    kind = Simulation if job.pool == MIXED else Forced
    policy = build_policy("fairlead", {})
    simulation = kind(world(job.pool, job.gbits), sent, policy, seed=job.seed, sink=answers.append)
    if isinstance(simulation, Forced):
        simulation.way = job.way
    simulation.run()
    assert len(answers) == job.requests
    first = sorted(each.first_token_ms for each in answers)
    pace = sorted((each.total_ms - each.first_token_ms) / max(1, each.output_tokens - 1) for each in answers)
    splits = simulation.splits / job.requests if isinstance(simulation, Forced) else 0.0
    return Result(
        fmean(each.total_ms for each in answers), first[int(0.95 * len(first))], pace[int(0.9 * len(pace))], splits
    )


def jobs_of(requests: int, seeds: int) -> Iterator[Job]:
    for prompt in PROMPTS:
        whole = faster_for(1.0, world(MIXED, 10), workload(prompt, requests, 0), read_policy_spec("fairlead"))
        for load, seed in product(LOADS, range(seeds)):
            yield Job(prompt, load, 0, MIXED, "never", load * whole, requests, seed)
            for pool in POOLS:
                yield Job(prompt, load, 0, pool, "never", load * whole, requests, seed)
                for gbits, way in product(GBITS, WAYS[1:]):
                    yield Job(prompt, load, gbits, pool, way, load * whole, requests, seed)


class Study:
    """Results by case, each the mean over its seeds."""

    def __init__(self, jobs: list[Job], results: list[Result]) -> None:
        found: dict[tuple[Any, ...], list[Result]] = {}
        for job, result in zip(jobs, results, strict=True):
            found.setdefault((job.prompt, job.load, job.gbits, job.pool, job.way), []).append(result)
        self._mean = {key: Result(*map(fmean, zip(*each, strict=True))) for key, each in found.items()}

    def of(self, prompt: int, load: float, gbits: int, pool: str, way: Way) -> Result:
        return self._mean[prompt, load, 0 if way == "never" else gbits, pool, way]

    def cases(self) -> Iterator[tuple[int, float, int]]:
        yield from product(PROMPTS, LOADS, GBITS)

    def against_mixed(self) -> Iterator[tuple[str, ...]]:
        for case in self.cases():
            mixed = self.of(*case, MIXED, "never")
            cells = []
            for pool in SHOWN:
                rule = self.of(*case, pool, "rule")
                cells += [f"{rule.mean_ms / mixed.mean_ms:.2f}", f"{rule.ttft_p95_ms / mixed.ttft_p95_ms:.2f}"]
                cells += [f"{rule.tpot_p90_ms / mixed.tpot_p90_ms:.2f}"]
            yield (*_case(case), f"{mixed.mean_ms / 1e3:.2f}", *cells)

    def rule(self) -> Iterator[tuple[float, tuple[str, ...]]]:
        """By how much the rule is behind the better of never and always, the worst first."""
        for case, pool in product(self.cases(), POOLS):
            never, always_, rule = (self.of(*case, pool, way) for way in WAYS)
            better = min(never.mean_ms, always_.mean_ms)
            behind = rule.mean_ms / better - 1
            shown = (f"{each.mean_ms / 1e3:.2f}" for each in (never, always_, rule))
            yield behind, (*_case(case), pool, *shown, f"{100 * rule.splits:.0f}", f"{100 * behind:+.1f}")


def _case(case: tuple[int, float, int]) -> tuple[str, str, str]:
    prompt, load, gbits = case
    return f"{prompt:,}", f"{load:g}", f"{gbits}"


def page(study: Study, command: str) -> str:
    rules = sorted(study.rule(), key=lambda each: -each[0])
    within = sum(behind <= 0.03 for behind, _ in rules)
    worst = rules[0][0]
    ahead = sum(behind < -0.03 for behind, _ in rules)
    heads = ("prompt tokens", "load", "Gbit/s")
    pools = [f"{pool}: {what}" for pool in SHOWN for what in ("mean", "TTFT p95", "TPOT p90")]
    return "\n".join(
        (
            "# Prefill and decoding at different engines, in simulated time",
            "",
            f"`{command}`, commit {commit()}, {date()}, {this_machine().cpu}.",
            "",
            f"{ENGINES} engines with the constants of an 8B model on one card (0.1 ms a prompt token, steps of 13 ms,",
            f"prefill in chunks of 8,192 tokens, which stall what decodes meanwhile); {KV_BYTES:,.0f} bytes of KV a",
            f"token. Every other request is a short question of some {SHORT} tokens; prompts share nothing; answers of",
            f"some {ANSWER} tokens; Poisson arrivals, into an empty pool, at shares of what the mixed pool serves. The",
            "policy is `fairlead` everywhere. Simulated time compares ways; it does not predict absolute times.",
            "",
            "## Against a mixed pool of as many engines",
            "",
            "Mean time to the end, p95 to the first token, p90 between tokens, each over that of the mixed pool (below",
            "1: better), by the rule.",
            "",
            table((*heads, "mixed, mean s", *pools), list(study.against_mixed())),
            "",
            "## The rule against never and always splitting",
            "",
            f"Mean seconds to the end in the same pool. The rule is within 3 % of the better of the two in {within} of",
            f"{len(rules)} cases, more than 3 % ahead of both in {ahead} of these, and {100 * worst:.1f} % behind in",
            "the worst. The worst first.",
            "",
            table((*heads, "pool", "never", "always", "rule", "split %", "behind %"), [row for _, row in rules]),
            "",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    jobs = list(jobs_of(chosen.requests, chosen.seeds))
    results: list[Result] = []
    with progress_bar("runs") as shown, worker_processes(chosen.jobs) as pool:
        task = shown.add_task("Simulating", total=len(jobs))
        for result in pool.map(run, jobs):
            results.append(result)
            shown.advance(task)
    command = f"python benchmarks/prefill_decode.py --requests {chosen.requests} --seeds {chosen.seeds}"
    chosen.out.write_text(page(Study(jobs, results), command), encoding="utf-8")
    print(f"wrote {chosen.out}")


if __name__ == "__main__":
    main()
