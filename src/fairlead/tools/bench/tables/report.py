"""The section of the report: tables of times, weights and idle CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlead.tools.bench.bodies import KINDS
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.tables.many_endpoints import BODY_KIB, TURNS, ManyEndpointsCell
from fairlead.tools.bench.tables.memory import Weight
from fairlead.tools.bench.tables.prefixes import BLOCKS, ENDPOINTS, STATES, PrefixCell
from fairlead.tools.bench.tables.run import Tables
from fairlead.tools.bench.tables.targets import added_share
from fairlead.tools.bench.tables.watches import Watches


def sections(tables: Tables) -> Iterator[str]:
    yield "## Tables and watches"
    yield "### Prefix index\n\n" + _prefixes(tables.prefixes)
    yield (
        f"### A decision among {tables.endpoints:,} endpoints with {tables.sessions:,} sessions, {BODY_KIB} KB\n\n"
        + _many_endpoints(tables.many_endpoints)
    )
    yield "### Memory\n\n" + _memory(tables.memory)
    yield "### Watches without a request\n\n" + _watches(tables.watches)


def _prefixes(cells: Sequence[PrefixCell]) -> str:
    by_place = {(c.state, c.endpoints, c.blocks): c for c in cells}
    rows = []
    for state in STATES:
        for endpoints in ENDPOINTS:
            own = [by_place[state, endpoints, blocks] for blocks in BLOCKS]
            times = [f"{cell.lookup_us:,.1f} / {cell.lookup_p99_us:,.1f}" for cell in own]
            times += [f"{cell.insert_us:,.1f} / {cell.insert_p99_us:,.1f}" for cell in own]
            rows.append((state, endpoints, ", ".join(f"{cell.found:,}" for cell in own), *times))
    heads = ("Held", "Endpoints", "Found", *(f"{what}, {n:,} blocks" for what in ("Lookup", "Insert") for n in BLOCKS))
    repeats = [cell.repeats for cell in cells]
    return (
        f"Microseconds, median / p99 of {min(repeats)} to {max(repeats)} repeats. cold: nothing is held; shared: all "
        "endpoints hold all but the prompt's last blocks; full: all endpoints hold as much as they may, and an insert "
        "evicts as much as it adds. *Found* is how many endpoints the last lookup knew to hold some of the prompt.\n\n"
        + table(heads, rows)
    )


def _many_endpoints(cells: Sequence[ManyEndpointsCell]) -> str:
    by_place = {(c.kind, c.turn): c for c in cells}
    rows = []
    for kind in KINDS:
        own = [by_place[kind, turn] for turn in TURNS]
        added = [f"{added_share(cells, cell):+.1%}" for cell in own[1:]]
        rows.append((kind, *(f"{cell.median_us:,.0f} / {cell.p99_us:,.0f}" for cell in own), *added))
    heads = ("Body", "Empty tables", "Known session", "New session", "Known: added", "New: added")
    return (
        "Microseconds, median / p99, policy fairlead. Each session's prompt is in the prefix index. The routers with "
        "empty and with filled tables take turns.\n\n" + table(heads, rows)
    )


def _memory(weights: Sequence[Weight]) -> str:
    rows = [
        (
            weight.what,
            f"{weight.count:,}",
            f"{weight.resident_bytes / 2**20:,.1f}",
            f"{weight.mib_per_million():,.1f}",
            f"{weight.counted_bytes / 2**20:,.1f}" if weight.counted_bytes is not None else "",
            f"{weight.collection_ms:,.1f}",
        )
        for weight in weights
    ]
    heads = ("What", "Held", "Resident MiB", "MiB a million", "Own count MiB", "Collection ms")
    return (
        "Growth of the resident memory of a process that holds just them; the index's own count, which its byte budget "
        "limits; and how long a full garbage collection stops that process.\n\n" + table(heads, rows)
    )


def _watches(watches: Watches) -> str:
    rows = [
        (
            run.endpoints,
            f"{run.cores():.3f}",
            f"{run.scrapes / run.measured_s:,.0f}",
            f"{run.cpu_s / max(1, run.scrapes) * 1e6:,.0f}",
            run.failures,
            f"{run.measured_s:.0f}",
        )
        for run in watches.runs
    ]
    heads = ("Endpoints", "Cores", "Scrapes/s", "CPU µs a scrape", "Failures", "Measured s")
    return (
        "CPU of a process that watches engines at the default intervals and does nothing else; probes of health and "
        f"round trips are in it. Pages are like vLLM's, of {watches.page_bytes / 1024:.0f} KiB. The aim is well under "
        "one core: a known rival is reported to use 7.5 cores for 100 pods.\n\n" + table(heads, rows)
    )
