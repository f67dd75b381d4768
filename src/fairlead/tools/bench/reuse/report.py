"""The result as people read it, in Markdown, and as programs do, in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from fairlead.tools.bench.machine import Machine, machine_facts
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.result_files import write_result
from fairlead.tools.bench.reuse.conversations import Prefilled
from fairlead.tools.bench.reuse.shares import LIMITED, Shares
from fairlead.tools.bench.reuse.speed import PAPER_US, Build, Step

_LIMITS: Final = """\
- Caches are computed, not measured: whole documents (first table) or blocks of 512 bytes (second), tokens as 4 bytes.
- The real lists are of few conversations about few corpora. The texts of the second table are made up, in the real \
lengths, so nothing but whole documents repeats in them.
- Nothing here tells whether answers stay as good: the paper's annotations are used, no model was asked.
- Offline, all lists are known before the first is sent, and are sent in the schedule's order."""


class Report(msgspec.Struct, frozen=True):
    """All of one run."""

    command: str
    seed: int
    machine: Machine
    load_average_after: float
    rival: str | None  # version of contextpilot, where it was compared with
    top_fifth: float  # of the synthetic lists
    shares: list[Shares]
    prefilled: list[Prefilled]
    steps: list[Step]
    rival_p50_us: float | None
    rival_p99_us: float | None
    builds: list[Build]


def write(report: Report, folder: Path) -> None:
    """reuse.md and reuse.json in `folder`."""
    write_result(folder, "reuse", markdown(report), report)


def markdown(report: Report) -> str:
    return "\n\n".join(_sections(report)) + "\n"


def _sections(report: Report) -> Iterator[str]:
    facts = machine_facts(report.command, report.seed, report.machine, report.load_average_after)
    rival = f"`contextpilot` {report.rival} ran on the same lists in the same run." if report.rival else ""
    yield f"# Context reuse\n\n{facts}\n\n{rival}".rstrip()
    yield (
        "## Tokens of documents found in the cache\n\n"
        f"Share of all tokens of the lists, % (in a cache that holds {LIMITED:.0%} of them). Of the synthetic lists "
        f"{report.top_fifth:.1%} of all uses fall on the most used fifth of the documents "
        "(paper: 79.2 %, 57.4 % and 49.6 % in its three datasets)."
    )
    yield _shares(report.shares)
    failed = [f"{one.lists}, {one.way}: {one.failures}" for one in report.shares if one.failures]
    if failed:
        yield "Requests that an ordering failed on, and that went on as received: " + "; ".join(failed) + "."
    yield (
        "## Tokens to compute\n\nWhole requests, each with its conversation so far, through `ContextReuse.rewrite` "
        "without its limit of 5 ms; from an empty cache without limit. Documents stand with each question, or those of "
        "this turn alone stand first, in the system prompt."
    )
    yield table(
        (
            "Lists",
            "Documents",
            "Sent as",
            "Prompt tokens",
            "To compute",
            "of raw",
            "p50 ms",
            "p99 ms",
            "CPU p99 ms",
            "Over 5 ms",
        ),
        [_prefilled(report, one) for one in report.prefilled],
    )
    yield (
        "## Time of a request\n\n15 documents of 1 KB, 2,000 requests, microseconds. Wall-clock times hold what other "
        "processes of the machine take; the paper's are of its table 6."
    )
    yield table(
        ("Step", "p50", "p99", "CPU p50", "CPU p99", "Paper"),
        [
            (
                s.name,
                *(f"{us:,.0f}" for us in (s.p50_us, s.p99_us, s.cpu_p50_us, s.cpu_p99_us)),
                f"{PAPER_US[s.name]:g}",
            )
            for s in report.steps
        ],
    )
    if report.rival_p50_us is not None:
        yield f"`contextpilot`, reorder online: p50 {report.rival_p50_us:,.0f}, p99 {report.rival_p99_us:,.0f}."
    yield "## Time to build the offline index\n\nSynthetic lists of 15 documents, one core, seconds."
    yield table(
        ("Contexts", "Wall", "CPU", "`contextpilot`, wall"),
        [
            (f"{b.contexts:,}", f"{b.wall_s:.2f}", f"{b.cpu_s:.2f}", "" if b.rival_s is None else f"{b.rival_s:.2f}")
            for b in report.builds
        ],
    )
    yield "## What it does not show\n\n" + _LIMITS


def _shares(shares: list[Shares]) -> str:
    ways = list(dict.fromkeys(one.way for one in shares))
    by_place = {(one.lists, one.way): one for one in shares}
    rows = []
    for name in dict.fromkeys(one.lists for one in shares):
        found = [by_place[name, way] for way in ways]
        rows.append((name, *(f"{100 * one.unlimited:.1f} ({100 * one.limited:.1f})" for one in found)))
    return table(("Lists", *ways), rows)


def _prefilled(report: Report, one: Prefilled) -> tuple[str, ...]:
    place = one.lists, one.layout, "raw"
    raw = next(other for other in report.prefilled if (other.lists, other.layout, other.way) == place)
    share = f"{one.computed_tokens / raw.computed_tokens:.1%}"
    times = ("",) * 4
    if one is not raw:
        times = (f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}", f"{one.cpu_p99_ms:.2f}", str(one.over_limit))
    return (one.lists, one.layout, one.way, f"{one.prompt_tokens:,}", f"{one.computed_tokens:,}", share, *times)
