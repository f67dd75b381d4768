"""The result as people read it, in Markdown, and as programs do, in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

from fairlead.tools.bench.machine import machine_facts
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.result_files import write_result
from fairlead.tools.bench.routing import pool
from fairlead.tools.bench.routing.run import OURS, Cell, Results
from fairlead.tools.estimates import Estimate, difference, estimate, ratio

_LIMITS: Final = """\
- The engines are simulated and alike, and run {scale:g} times as fast as the hardware they stand for; times are of \
the wall clock. Compare within this run, not with a real pool.
- Runs last some seconds and begin cold, so filling the caches is a part of each.
- Most runs end before the sidecar has observed enough answers to learn its constants: the configured ones decide.
- Clients wait for their answers: a policy that is slow is asked less, which is kind to it.
- There is no network to speak of, one model, and no wrong answer: what `fairlead` knows of those does not count here.
- All policies read Fairlead's one prefix index and its counts; what the originals keep for themselves is not measured.
- Intervals are Student's t over {repeats} repeats. An interval that holds 1 (or 0) means that the sign may be chance; \
with so many comparisons, one in twenty would look real without being it."""


def write(results: Results, folder: Path) -> None:
    """routing.md and routing.json in `folder`."""
    write_result(folder, "routing", markdown(results), results)


def markdown(results: Results) -> str:
    parts = [_head(results), "![p95 time to first token against cached share](routing.png)"]
    for cell in results.plan.cells:
        parts += list(_cell(results, cell))
    parts.append("## What it does not show\n\n" + _LIMITS.format(scale=pool.TIME_SCALE, repeats=results.plan.repeats))
    return "\n\n".join(parts) + "\n"


def _head(results: Results) -> str:
    facts = machine_facts(results.command, results.plan.seed, results.machine, results.load_average_after)
    return (
        f"# Policies on the same sessions\n\n{facts}\n\n"
        f"{pool.ENGINES} simulated engines with {pool.KV_TOKENS:,} tokens of KV cache each, "
        f"{pool.PREFILL_MS_PER_TOKEN:g} ms a prompt token and {pool.DECODE_MS_PER_TOKEN:g} ms a step, made "
        f"{pool.TIME_SCALE:g} times faster; a real Envoy; `fairlead serve` with the same configuration under every "
        "policy but for its name, started anew for each run; closed-loop clients that repeat their conversation with "
        f"each turn. {results.plan.repeats} repeats, each with other sessions; all policies serve the same ones, from "
        "empty caches, in an order that changes with each repeat. Times are those that the clients saw, through Envoy."
    )


def _cell(results: Results, cell: Cell) -> Iterator[str]:
    requests = [o.requests for o in results.of(cell.name, OURS)]
    yield (
        f"## {cell.name.capitalize()}\n\n{cell.clients} clients at a time, {cell.sessions} sessions, "
        f"{min(requests)} to {max(requests)} requests a run: {cell.regime.about}."
    )
    yield table(
        ("Policy", "Cached share %", "TTFT p50 ms", "TTFT p95 ms", "E2E p50 ms", "E2E p95 ms", "Busiest / mean"),
        [_row(results, cell, policy) for policy in results.plan.policies],
    )
    yield "Mean over the repeats ± half of the 95 % interval."
    rivals = [policy for policy in results.plan.policies if policy != OURS]
    yield table(
        (f"`{OURS}` against", "Cached share, points", "TTFT p95, ratio", "E2E p95, ratio"),
        [_against(results, cell, rival) for rival in rivals],
    )
    yield f"Pairs of the same repeat, with 95 % intervals. {_verdict(results, cell, rivals)}"


def _row(results: Results, cell: Cell, policy: str) -> tuple[str, ...]:
    def of(field: str, digits: int, scale: float = 1.0) -> str:
        return estimate([scale * value for value in _values(results, cell, policy, field)]).plus_minus(digits)

    times = [of(field, 0) for field in ("ttft_p50_ms", "ttft_p95_ms", "e2e_p50_ms", "e2e_p95_ms")]
    return (policy, of("cached_share", 1, 100.0), *times, of("imbalance", 2))


def _against(results: Results, cell: Cell, rival: str) -> tuple[str, ...]:
    share = difference(
        *([100 * value for value in _values(results, cell, policy, "cached_share")] for policy in (OURS, rival))
    )
    ratios = [_ratio(results, cell, rival, field) for field in ("ttft_p95_ms", "e2e_p95_ms")]
    return (rival, share.text(1, "+"), *(each.text(2) for each in ratios))


def _verdict(results: Results, cell: Cell, rivals: Sequence[str]) -> str:
    ratios = {rival: _ratio(results, cell, rival, "ttft_p95_ms") for rival in rivals}
    lower = [rival for rival, found in ratios.items() if found.high < 1]
    higher = [rival for rival, found in ratios.items() if found.low > 1]
    open_ = [rival for rival, found in ratios.items() if not found.excludes(1.0)]
    sayings = (("below that of", lower), ("ABOVE that of", higher), ("not told apart from that of", open_))
    return f"p95 TTFT of `{OURS}`: " + "; ".join(f"{say} {_names(names)}" for say, names in sayings if names) + "."


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _ratio(results: Results, cell: Cell, rival: str, field: str) -> Estimate:
    return ratio(_values(results, cell, OURS, field), _values(results, cell, rival, field))


def _values(results: Results, cell: Cell, policy: str, field: str) -> list[float]:
    return [attrgetter(field)(found) for found in results.of(cell.name, policy)]
