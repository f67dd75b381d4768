"""What policies are compared on: traces at loads, in worlds; and their runs, kept so that a study can go on.

A load is a share of what the best of REFERENCES serves in that world when it never waits for a request, so that a
policy that reuses more does not meet an idle pool. Windows of the traces are short: a policy is run hundreds of times.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple

import msgspec

from fairlead.tools.origin import commit
from fairlead.tools.replay.claude_code import Sampling
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.rows import LatencyTarget, Rows, RunSummary, summarise
from fairlead.tools.replay.run import Traffic, workload_of
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import World
from fairlead.tools.replay.worlds import named_world

DATA = Path("benchmarks/data")
KEPT = Path("benchmarks/results/papers/traffic/runs.jsonl")
REFERENCES = ("fairlead", "unified", "llm_d")
COLUMNS = ("ttft_p95_ms", "e2e_p95_ms", "e2e_mean_ms")
HEADINGS = {"ttft_p95_ms": "TTFT p95", "e2e_p95_ms": "E2E p95", "e2e_mean_ms": "E2E mean"}


class Trace(NamedTuple):
    name: str
    about: str
    file: str
    window_s: float
    drawn: str  # what a seed draws
    sampling: Sampling = Sampling()
    recorded_s: float | None = None  # a seed draws where in it the window begins; None: it begins with the trace

    def begin_s(self, seed: int) -> float:
        if self.recorded_s is None:
            return 0.0
        return Random(f"{self.name} {seed}").uniform(0.0, self.recorded_s - self.window_s)


TRACES = (
    Trace(
        "mooncake", "Mooncake's conversations, open loop", "mooncake_conversation.jsonl.gz", 600.0,
        "which ten minutes of the hour, and times inside a quantum of 3 s", recorded_s=3500.0,
    ),
    Trace(
        "agents", "agent sessions as recorded, closed loop", "claude_code.jsonl.gz", 400.0,
        "which sessions, and their starts",
    ),
    Trace(
        "hot-agents", "agent sessions drawn again and again, closed loop", "claude_code.jsonl.gz", 600.0,
        "which sessions, and their starts", Sampling(zipf=1.0, draws=12),
    ),
    Trace(
        "azure", "Azure's chats: nothing to reuse, open loop", "azure_llm_2023_conv.csv.gz", 600.0,
        "which ten minutes of the hour", recorded_s=3500.0,
    ),
    Trace(
        "short", "made up: answers of 30 tokens under 40 tenants' system prompts, open loop", "", 900.0, "all of it",
    ),
)  # fmt: skip


class Case(NamedTuple):
    """One trace in one world at one load."""

    trace: str
    world: str
    load: float

    def __str__(self) -> str:
        return f"{self.trace}, {self.world}, {self.load:g}"


class Kept(msgspec.Struct, frozen=True):
    """One run, in ms."""

    trace: str
    world: str
    load: float
    seed: int
    policy: str
    ttft_p95_ms: float
    e2e_p95_ms: float
    e2e_mean_ms: float
    cached_share: float
    requests: int
    faster: float
    commit: str = ""

    @property
    def key(self) -> tuple[str, str, float, int, str]:
        return self.trace, self.world, self.load, self.seed, self.policy


def trace_of(name: str) -> Trace:
    return next(trace for trace in TRACES if trace.name == name)


def workload(name: str, seed: int) -> Workload:
    trace = trace_of(name)
    if trace.file:
        begin_s = trace.begin_s(seed)
        return workload_of(Traffic(str(DATA / trace.file), trace.sampling, begin_s, begin_s + trace.window_s), seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        path.write_bytes(b"\n".join(map(msgspec.json.encode, _short(seed))))
        return workload_of(Traffic(str(path)), seed)


def _short(seed: int) -> Iterator[dict[str, object]]:
    """2,100 requests of 40 tenants with Zipf weights: a system prompt of 1 to 6 thousand tokens and a question."""
    rng = Random(f"short answers {seed}")
    tenants = [rng.randrange(8, 48) for _ in range(40)]  # blocks of the system prompt
    weights = [1 / rank for rank in range(1, 41)]
    at_s = 0.0
    for number in range(2100):
        at_s += rng.expovariate(4.0)
        (tenant,) = rng.choices(range(40), weights)
        own = rng.randrange(1, 17)
        blocks = [tenant * 1000 + block for block in range(tenants[tenant])]
        blocks += [1_000_000 + number * 100 + block for block in range(own)]
        yield {
            "at_s": at_s,
            "prompt_tokens": len(blocks) * 128 + rng.randrange(128),
            "output_tokens": max(4, round(rng.lognormvariate(3.2, 0.5))),
            "block_tokens": 128,
            "blocks": blocks,
            "session": f"tenant {tenant}",
        }


def world_named(name: str) -> World:
    """What is learned is put in force every 5 s and not every second: fitting is most of a run's time."""
    world = named_world(name)
    return msgspec.structs.replace(world, observation=msgspec.structs.replace(world.observation, learn_s=5.0))


def replayed(world: World, traffic: Workload, faster: float, policy: str, seed: int) -> RunSummary:
    """What came of `traffic`, so many times faster, under one policy."""
    rows = Rows()
    simulation = read_policy_spec(policy).simulation(world, traffic.faster(faster), seed, rows.add)
    simulation.run()
    return summarise(
        rows.frame(), simulation.counts, recorded_ms=traffic.span_ms, engines=len(world.endpoints),
        target=LatencyTarget(),
    )  # fmt: skip


class Runs:
    """Runs that were made, by what was run; a new one is appended to the file at once."""

    def __init__(self, path: Path = KEPT) -> None:
        self._path = path
        self._found: dict[tuple[str, str, float, int, str], Kept] = {}
        self._faster: dict[tuple[str, str, float], float] = {}
        self._workloads: dict[tuple[str, int], Workload] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                self._add(msgspec.json.decode(line, type=Kept))

    @property
    def commits(self) -> str:
        """Those that the kept runs were made with: to begin anew, remove the file."""
        return ", ".join(sorted({kept.commit for kept in self._found.values()}))

    def _add(self, kept: Kept) -> None:
        self._found[kept.key] = kept
        self._faster[kept.trace, kept.world, kept.load] = kept.faster

    def get(self, case: Case, policy: str, seed: int) -> Kept | None:
        return self._found.get((*case, seed, policy))

    def make(self, cases: Iterable[Case], policies: Iterable[str], seeds: Sequence[int]) -> None:
        """Run what is missing, one after the other."""
        policies = tuple(policies)
        for case in cases:
            for seed in seeds:
                for policy in policies:
                    if self.get(case, policy, seed) is None:
                        self._make(case, policy, seed)
            print(f"{case}: done", flush=True)

    def mean(self, case: Case, policy: str, column: str, seeds: Sequence[int]) -> float | None:
        """Over the seeds; None where a run is missing."""
        found = [self.get(case, policy, seed) for seed in seeds]
        if any(one is None for one in found):
            return None
        return fmean(float(getattr(one, column)) for one in found)

    def _make(self, case: Case, policy: str, seed: int) -> None:
        world = world_named(case.world)
        traffic = self._workload(case.trace, seed)
        where = case.trace, case.world, case.load
        if where not in self._faster:
            first = self._workload(case.trace, 0)
            self._faster[where] = max(
                faster_for(case.load, world, first, read_policy_spec(reference)) for reference in REFERENCES
            )
        faster = self._faster[where]
        found = replayed(world, traffic, faster, policy, seed)
        kept = Kept(
            *case,
            seed,
            policy,
            ttft_p95_ms=round(found.ttft_p95_ms, 2),
            e2e_p95_ms=round(found.e2e_p95_ms, 2),
            e2e_mean_ms=round(found.e2e_mean_ms, 2),
            cached_share=round(found.cached_share, 4),
            requests=found.requests,
            faster=faster,
            commit=commit(),
        )
        self._add(kept)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(kept) + b"\n")

    def _workload(self, trace: str, seed: int) -> Workload:
        if (trace, seed) not in self._workloads:
            self._workloads[trace, seed] = workload(trace, seed)
        return self._workloads[trace, seed]
