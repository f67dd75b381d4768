"""The results of a replay as Markdown tables: means over seeds, and policies compared seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fairlead.tools.bench.markdown import table
from fairlead.tools.estimates import Estimate, estimate, ratio
from fairlead.tools.origin import Origin
from fairlead.tools.replay.rows import LatencyTarget
from fairlead.tools.replay.run import RunResult


class Facts(msgspec.Struct, frozen=True):
    """The circumstances of a study, shown at the head of its report."""

    origin: Origin
    engines: int
    seeds: tuple[int, ...]
    target: LatencyTarget
    loads: tuple[str, ...] = ()  # how the load of each trace was set


class Column(msgspec.Struct, frozen=True):
    """One number of a summary, as tables show it."""

    heading: str
    field: str
    digits: int = 0
    scale: float = 1.0


TIMES: Final = (
    Column("TTFT p50 ms", "ttft_p50_ms"),
    Column("TTFT p95 ms", "ttft_p95_ms"),
    Column("TTFT p99 ms", "ttft_p99_ms"),
    Column("TPOT p50 ms", "tpot_p50_ms", 1),
    Column("TPOT p95 ms", "tpot_p95_ms", 1),
    Column("E2E p50 ms", "e2e_p50_ms"),
    Column("E2E p95 ms", "e2e_p95_ms"),
    Column("E2E p99 ms", "e2e_p99_ms"),
)
USE: Final = (
    Column("Cached %", "cached_share", 1, 100.0),
    Column("Hotspot", "hotspot", 2),
    Column("Most chosen %", "concentration", 1, 100.0),
    Column("Median worker TTFT p90 ms", "median_worker_ttft_p90_ms"),
    Column("Worst worker TTFT p90 ms", "worst_worker_ttft_p90_ms"),
    Column("Busy %", "busy_share", 0, 100.0),
    Column("Amplification", "amplification", 2),
    Column("Goodput /s", "goodput_per_s", 2),
    Column("Good %", "good_share", 1, 100.0),
)
CORRECT: Final = (
    Column("TTCA mean ms", "ttca_mean_ms"),
    Column("TTCA p95 ms", "ttca_p95_ms"),
)
COMPARED: Final = (
    Column("TTFT p95", "ttft_p95_ms"),
    Column("E2E p95", "e2e_p95_ms"),
    Column("E2E mean", "e2e_mean_ms"),
)

_ALIKE: Final = 1e-9  # of a mean: a smaller interval is rounding

_LEGEND: Final = """\
- TTFT, TPOT, E2E: time to first token, per further token, to the end, of all attempts that were answered. TTCA: time \
from the first attempt to a right answer.
- Cached: share of all prompt tokens that engines had cached. Hotspot: prompt tokens that the busiest engine had to \
compute, over the mean of all engines. Most chosen: share of attempts that one engine got.
- Amplification: from the first request to the last answer, over the span of the recording: in a closed loop a slow \
pool is asked later.
- Goodput: right answers with the first token within {first_token_ms:g} ms and {token_ms:g} ms a token.
- Intervals are Student's t over seeds, which draw what the notes above say, not other traffic. A number without one \
is of a single seed, or the same with every seed: then nothing varied, and it is not exact. In a comparison both \
policies had the same arrivals; an interval that holds 1 means that the sign may be chance, and with so many \
comparisons one in twenty would look real without being it."""


class ReplayResults:
    """Results of one plan, by trace and policy in the order they ran."""

    def __init__(self, outcomes: Sequence[RunResult]) -> None:
        self.traces = tuple(dict.fromkeys(each.trace for each in outcomes))
        self.policies = tuple(dict.fromkeys(each.policy for each in outcomes))
        self._by: dict[tuple[str, str], list[RunResult]] = {}
        for each in outcomes:
            self._by.setdefault((each.trace, each.policy), []).append(each)

    def of(self, trace: str, policy: str) -> list[RunResult]:
        """One for each seed."""
        return self._by[trace, policy]

    def values(self, trace: str, policy: str, column: Column) -> list[float]:
        return [column.scale * float(getattr(each.summary, column.field)) for each in self.of(trace, policy)]


def markdown(results: ReplayResults, facts: Facts) -> str:
    """The report; its pictures are `<trace>.png` in the same folder."""
    parts = [_head(facts)]
    for trace in results.traces:
        parts += list(_trace(results, trace))
    parts.append("## How to read it\n\n" + _LEGEND.format(**msgspec.structs.asdict(facts.target)))
    return "\n\n".join(parts) + "\n"


def _head(facts: Facts) -> str:
    lines = [
        f"- Command: `{facts.origin.command}`",
        f"- Seeds: {', '.join(map(str, facts.seeds))}",
        f"- Date: {facts.origin.date}",
        f"- Commit: {facts.origin.commit}",
        f"- World: {facts.engines} engines",
        *(f"- Load: {load}" for load in facts.loads),
    ]
    return "# Replay\n\n" + "\n".join(lines)


def _trace(results: ReplayResults, trace: str) -> Iterator[str]:
    first = results.of(trace, results.policies[0])
    summary = first[0].summary
    yield f"## {trace}"
    yield f"{summary.requests:,} requests with the first seed.{_missing(results, trace)}"
    yield "\n".join(f"- {note}" for note in first[0].notes)
    yield f"![{trace}]({trace}.png)"
    yield from tables(results, trace)


def tables(results: ReplayResults, trace: str) -> Iterator[str]:
    """All numbers of one trace."""
    yield _table(results, trace, TIMES)
    yield _table(results, trace, USE)
    if any(o.summary.attempts > o.summary.requests for p in results.policies for o in results.of(trace, p)):
        yield _table(results, trace, CORRECT)
        yield _successes(results, trace)
    if len(results.policies) > 1:
        yield _comparison(results, trace)


def _missing(results: ReplayResults, trace: str) -> str:
    """A sentence for each policy that left requests unanswered."""
    said = []
    for policy in results.policies:
        refused = sum(each.summary.refused for each in results.of(trace, policy))
        dropped = sum(each.summary.dropped for each in results.of(trace, policy))
        if refused:
            said.append(f" `{policy}`: {refused:,} prompts fitted no engine, {dropped:,} later turns were not sent.")
    return "".join(said)


def _table(results: ReplayResults, trace: str, columns: Sequence[Column]) -> str:
    rows = [
        (f"`{policy}`", *(_text(estimate(results.values(trace, policy, c)), c.digits) for c in columns))
        for policy in results.policies
    ]
    return table(("Policy", *(column.heading for column in columns)), rows)


def half_width(found: Estimate) -> float | None:
    """Of the interval; None where there is none: with a single seed, or with seeds that are all alike."""
    half = found.high - found.mean
    return half if math.isfinite(half) and half > _ALIKE * abs(found.mean) else None


def _text(found: Estimate, digits: int) -> str:
    half = half_width(found)
    mean = f"{found.mean:,.{digits}f}"
    if half is None:
        return mean
    least = 10.0**-digits
    return f"{mean} ± {half:,.{digits}f}" if half >= least / 2 else f"{mean} ± <{least:,.{digits}f}"


def _successes(results: ReplayResults, trace: str) -> str:
    """Share of requests with a right answer by each attempt."""
    most = max(len(o.summary.success_by_attempt) for p in results.policies for o in results.of(trace, p))
    rows = []
    for policy in results.policies:
        shares = [
            [o.summary.success_by_attempt[min(n, len(o.summary.success_by_attempt) - 1)] for n in range(most)]
            for o in results.of(trace, policy)
        ]
        found = [estimate([100 * share for share in column]) for column in zip(*shares, strict=True)]
        rows.append((f"`{policy}`", *(_text(each, 1) for each in found)))
    return table(("Right by attempt, %", *map(str, range(1, most + 1))), rows)


def _comparison(results: ReplayResults, trace: str) -> str:
    """The first policy against each other one."""
    ours, *others = results.policies
    rows = [
        (f"`{other}`", *(_ratio_text(against(results, trace, ours, other, column)) for column in COMPARED))
        for other in others
    ]
    heads = (f"`{ours}` over", *(f"{column.heading}, ratio" for column in COMPARED))
    return table(heads, rows) + "\n\nBelow 1, the first policy is faster."


def against(results: ReplayResults, trace: str, ours: str, other: str, column: Column) -> Estimate:
    """Ours over the other, seed by seed; NaN where either is 0."""
    mine, theirs = results.values(trace, ours, column), results.values(trace, other, column)
    if min(*mine, *theirs) <= 0:
        return Estimate(math.nan, math.nan, math.nan)
    return ratio(mine, theirs)


def _ratio_text(found: Estimate) -> str:
    if half_width(found) is None:
        return f"{found.mean:.2f}"
    return found.text(2)
