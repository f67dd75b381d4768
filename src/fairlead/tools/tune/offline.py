"""Tuning on recorded traffic: the same search as in `serve`, with candidates and incumbent replayed on equal arrivals.

Each trace is cut in two by time. Candidates are compared on the first part; the best is then compared with the initial
weights on the second, which the search has not seen. The unit of both comparisons is a slice: conversations that start
in a row, the same ones under all weights, so that neither a lucky seed nor one long burst can pass for a gain. Which
requests overlapped in the recording was chance too: if turns wait for answers, each seed beyond 0 starts the
conversations of a slice in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import lru_cache
from itertools import groupby, product
from random import Random
from statistics import fmean, stdev
from typing import Final, Literal

import msgspec

from fairlead.core.policy import Policy
from fairlead.errors import UserError
from fairlead.policies import build_policy
from fairlead.statistics import quantile
from fairlead.tools.estimates import Estimate, estimate
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.run import Traffic, workload_of
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Conversation, Workload
from fairlead.tools.replay.world import World
from fairlead.tools.study import worker_processes
from fairlead.tuning.fair import SCORED_QUANTILE
from fairlead.tuning.search import Search
from fairlead.tuning.weights import Box, Weights, weights_of, with_weights

JUDGED_SEEDS: Final = 8  # at least, on the held-out part: two sets of weights are compared closely there
SLICES: Final = 8  # slices in each part, without the first, in which caches are cold
LEAST_SLICES: Final = 4
LEAST_REQUESTS: Final = 60  # per slice: a p95 of fewer would be one or two requests
FIRST_TOKEN_TOLERANCE: Final = 0.05  # by how much a gain in total time may raise p95 time to the first token
_LEAST_GAIN: Final = 0.002  # least gain in the logarithm of p95 that is accepted
_STANDARD_ERRORS: Final = (
    1.0  # that a gain must exceed for the search to continue from it; the held-out part decides in the end
)

Part = Literal["tuning", "held_out"]


class TuningData(msgspec.Struct, frozen=True):
    """The traffic and world to tune on. `share` of each trace's time is for the search, the rest is held out."""

    traffics: tuple[Traffic, ...]
    world: World
    seeds: tuple[int, ...]
    share: float = 0.5


class Slice(msgspec.Struct, frozen=True):
    """One part of one trace under some weights: mean over seeds of the logarithms of two p95."""

    log_total_ms: float
    log_first_token_ms: float


class Comparison(msgspec.Struct, frozen=True):
    """Two sets of weights on the same slices: ratios, below 1 where the second is better."""

    total: Estimate
    first_token: Estimate

    @property
    def is_gain(self) -> bool:
        """Total time is certainly better, and time to the first token not worse than allowed."""
        return self.total.high < 1.0 and self.first_token.mean <= 1.0 + FIRST_TOKEN_TOLERANCE


class Proposal(msgspec.Struct, frozen=True):
    """One candidate of the search; `p95_ms` is the geometric mean over slices."""

    number: int
    candidate: Weights
    incumbent: Weights
    p95_ms: float
    first_token_p95_ms: float
    against_start: Comparison
    step: float
    accepted: bool


class TuningResult(msgspec.Struct, frozen=True):
    """The result of a search. `held_out` compares it with the weights at the start; None if nothing was accepted."""

    policy: str
    start: Weights
    best: Weights
    start_p95_ms: float
    start_first_token_p95_ms: float
    proposals: tuple[Proposal, ...]
    held_out: Comparison | None


class _TuningJob(msgspec.Struct, frozen=True):
    traffic: Traffic
    world: World
    seed: int
    share: float
    part: Part
    policy: str
    parameters: dict[str, float]


def tune(
    policy_name: str,
    policy: Policy,
    box: Box,
    data: TuningData,
    *,
    proposals: int,
    seed: int,
    jobs: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> TuningResult:
    """`progress` is called as runs end; there are at most `runs(data, proposals)` of them. Raises UserError."""
    start = weights_of(policy, box)
    search = Search(start, box, Random(seed))
    with nullcontext() if jobs == 1 else worker_processes(jobs) as workers:

        def slices(weights: Weights, part: Part) -> list[Slice]:
            changed = with_weights(policy, weights)
            return _measure(data, policy_name, changed, part, workers, progress)

        at_start = incumbent = slices(start, "tuning")
        log: list[Proposal] = []
        for number in range(1, proposals + 1):
            candidate, step, before = search.propose(), search.step, search.incumbent
            tried = slices(candidate, "tuning")
            ratio = compare(at_start, tried)  # against the start: small losses must not add up
            gain, error = _gain(incumbent, tried)
            expected = search.expected(candidate).with_seen(gain, error)
            search.learn(candidate, gain, error)
            better = expected.gain > max(_LEAST_GAIN, _STANDARD_ERRORS * expected.error)
            accepted = better and ratio.first_token.mean <= 1.0 + FIRST_TOKEN_TOLERANCE
            if accepted:
                search.accept(candidate)
                incumbent = tried
            else:
                search.reject()
            p95_ms, first_token_p95_ms = _p95s(tried)
            log.append(Proposal(number, candidate, before, p95_ms, first_token_p95_ms, ratio, step, accepted))
        held_out = None
        if search.incumbent != start:
            data = msgspec.structs.replace(data, seeds=_judged_seeds(data))
            held_out = compare(slices(start, "held_out"), slices(search.incumbent, "held_out"))
    return TuningResult(policy_name, start, search.incumbent, *_p95s(at_start), tuple(log), held_out)


def runs(data: TuningData, proposals: int) -> int:
    """The most simulations that `tune` makes."""
    return len(data.traffics) * (len(data.seeds) * (proposals + 1) + 2 * len(_judged_seeds(data)))


def _judged_seeds(data: TuningData) -> tuple[int, ...]:
    further = range(max(data.seeds) + 1, max(data.seeds) + 1 + JUDGED_SEEDS - len(data.seeds))
    return (*data.seeds, *further)


def compare(before: Sequence[Slice], after: Sequence[Slice]) -> Comparison:
    """Ratios of p95, slice by slice: geometric means with their 95 % intervals."""
    pairs = list(zip(before, after, strict=True))
    total = estimate([b.log_total_ms - a.log_total_ms for a, b in pairs])
    first_token = estimate([b.log_first_token_ms - a.log_first_token_ms for a, b in pairs])
    return Comparison(Estimate(*map(math.exp, total)), Estimate(*map(math.exp, first_token)))


def _gain(before: Sequence[Slice], after: Sequence[Slice]) -> tuple[float, float]:
    """The mean over slices, of the logarithm of p95, and its standard error."""
    gains = [b.log_total_ms - a.log_total_ms for b, a in zip(before, after, strict=True)]
    return fmean(gains), stdev(gains) / math.sqrt(len(gains))


def _p95s(slices: Sequence[Slice]) -> tuple[float, float]:
    return (
        math.exp(fmean(each.log_total_ms for each in slices)),
        math.exp(fmean(each.log_first_token_ms for each in slices)),
    )


def _measure(
    data: TuningData, name: str, policy: Policy, part: Part, workers: Executor | None, progress: Callable[[int], None]
) -> list[Slice]:
    parameters = msgspec.structs.asdict(policy)  # type: ignore[arg-type]  # every policy of the registry is a struct
    jobs = [
        _TuningJob(traffic, data.world, seed, data.share, part, name, parameters)
        for traffic, seed in product(data.traffics, data.seeds)
    ]
    results: list[list[Slice]] = []
    for result in workers.map(_run, jobs) if workers is not None else map(_run, jobs):
        results.append(result)
        progress(1)
    seeds = len(data.seeds)
    slices: list[Slice] = []
    for first in range(0, len(jobs), seeds):
        slices += [
            Slice(fmean(s.log_total_ms for s in same), fmean(s.log_first_token_ms for s in same))
            for same in zip(*results[first : first + seeds], strict=True)
        ]
    return slices


def _run(job: _TuningJob) -> list[Slice]:
    """The slices of one simulation, without the first, in which caches are cold."""
    workload, place = part_of(job.traffic, job.seed, job.share, job.part)
    slices = place[-1] + 1
    totals: list[list[float]] = [[] for _ in range(slices)]
    first_tokens: list[list[float]] = [[] for _ in range(slices)]

    def sink(answer: AttemptRecord) -> None:
        if answer.endpoint >= 0:
            totals[place[answer.conversation]].append(answer.total_ms)
            first_tokens[place[answer.conversation]].append(answer.first_token_ms)

    policy = build_policy(job.policy, job.parameters)
    Simulation(job.world, workload, policy, seed=job.seed, sink=sink).run()
    return [
        Slice(math.log(quantile(total, SCORED_QUANTILE)), math.log(quantile(first, SCORED_QUANTILE)))
        for total, first in zip(totals[1:], first_tokens[1:], strict=True)
        if total
    ]


@lru_cache(maxsize=16)
def part_of(traffic: Traffic, seed: int, share: float, part: Part) -> tuple[Workload, list[int]]:
    """A part of the traffic, with the slice of each of its conversations."""
    workload = workload_of(traffic, seed)
    starts = [conversation.start_ms for conversation in workload.conversations]
    cut_s = (starts[0] + share * (starts[-1] - starts[0])) / 1e3
    found = workload.between(0.0, cut_s) if part == "tuning" else workload.between(cut_s, math.inf)
    if found.requests < (LEAST_SLICES + 1) * LEAST_REQUESTS:
        raise UserError(
            f"{traffic.path}: {found.requests} requests in the part for {part.replace('_', ' ')} are too few to tell "
            f"weights apart; it takes {(LEAST_SLICES + 1) * LEAST_REQUESTS}"
        )
    place = _slice_of_each(found)
    return (_reordered(found, place, Random(seed)) if seed and found.closed_loop else found), place


def _reordered(workload: Workload, place: Sequence[int], rng: Random) -> Workload:
    """The workload with start times exchanged within each slice; those of one session keep their order."""
    conversations = workload.conversations
    moved: list[Conversation] = []
    for _, numbers in groupby(range(len(conversations)), key=place.__getitem__):
        row = list(numbers)
        order = rng.sample(row, len(row))
        own: dict[bytes | int, list[int]] = {}
        for number in reversed(row):
            own.setdefault(conversations[number].session or number, []).append(number)
        for at, drawn in zip(row, order, strict=True):
            other = conversations[own[conversations[drawn].session or drawn].pop()]
            moved.append(msgspec.structs.replace(other, start_ms=conversations[at].start_ms))
    return msgspec.structs.replace(workload, conversations=tuple(moved))


def _slice_of_each(workload: Workload) -> list[int]:
    """The slice of each conversation; slices have about equally many requests."""
    slices = 1 + min(SLICES, workload.requests // LEAST_REQUESTS - 1)
    places = []
    before = 0
    for conversation in workload.conversations:
        places.append(min(slices - 1, before * slices // workload.requests))
        before += len(conversation.turns)
    return places
