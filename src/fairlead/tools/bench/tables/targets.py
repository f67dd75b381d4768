"""What the tables and watches were aimed at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fairlead.core.prefix_index import DEFAULT_MAX_BYTES
from fairlead.tools.bench.tables import prefixes
from fairlead.tools.bench.tables.many_endpoints import BODY_KIB, ManyEndpointsCell
from fairlead.tools.bench.tables.memory import Weight
from fairlead.tools.bench.tables.prefixes import PrefixCell
from fairlead.tools.bench.tables.run import Tables
from fairlead.tools.bench.tables.watches import Watches
from fairlead.tools.bench.targets import Target

MOST_LOOKUP_US: Final = 50.0
MOST_GROWTH: Final = 2.0  # of a lookup, for a prompt four times as long
MOST_INSERT_US: Final = 250.0
MOST_ADDED_SHARE: Final = 0.1  # of a decision's time, by full tables
MOST_SESSIONS_BYTES: Final = 1e9
MOST_COLLECTION_MS: Final = 10.0
MOST_CORES: Final = 0.5

_USUAL_ENDPOINTS: Final = 64


def tables_targets(tables: Tables) -> Iterator[Target]:
    yield from _prefix_targets(tables.prefixes)
    yield _many_endpoints_target(tables)
    yield from _memory_targets(tables.memory)
    yield from _watch_targets(tables.watches)


def _prefix_targets(cells: Sequence[PrefixCell]) -> Iterator[Target]:
    short, long = prefixes.BLOCKS
    usual = [cell for cell in cells if cell.endpoints == _USUAL_ENDPOINTS]
    lookup = max((cell for cell in usual if cell.blocks == short), key=lambda cell: cell.lookup_us)
    yield Target(
        what=f"Prefix lookup, {_USUAL_ENDPOINTS} endpoints, {short:,} blocks (64K tokens)",
        aim=f"< {MOST_LOOKUP_US:g} µs",
        measured=f"{lookup.lookup_us:.1f} µs ({lookup.state}, the slowest)",
        holds=lookup.lookup_us < MOST_LOOKUP_US,
    )
    of_short = {(cell.state, cell.endpoints): cell.lookup_us for cell in cells if cell.blocks == short}
    growth = max(c.lookup_us / of_short[c.state, c.endpoints] for c in cells if c.blocks == long)
    yield Target(
        what=f"Prefix lookup, {long:,} blocks against {short:,}",
        aim=f"< {MOST_GROWTH:g} times",
        measured=f"{growth:.2f} times at most",
        holds=growth < MOST_GROWTH,
    )
    insert = max((cell for cell in usual if cell.blocks == long), key=lambda cell: cell.insert_us)
    yield Target(
        what=f"Prefix insert, {_USUAL_ENDPOINTS} endpoints, {long:,} blocks",
        aim=f"< {MOST_INSERT_US / 1e3:g} ms",
        measured=f"{insert.insert_us / 1e3:.3f} ms ({insert.state}, the slowest)",
        holds=insert.insert_us < MOST_INSERT_US,
    )


def _many_endpoints_target(tables: Tables) -> Target:
    cells = tables.many_endpoints
    worst = max((cell for cell in cells if cell.turn != "empty"), key=lambda cell: added_share(cells, cell))
    added = added_share(cells, worst)
    return Target(
        what=f"Decision, {tables.endpoints:,} endpoints, {BODY_KIB} KB: added by {tables.sessions:,} sessions",
        aim=f"< {MOST_ADDED_SHARE:.0%}",
        measured=f"{added:.1%} ({worst.kind}, {worst.turn} session, the most)",
        holds=added < MOST_ADDED_SHARE,
    )


def added_share(cells: Sequence[ManyEndpointsCell], cell: ManyEndpointsCell) -> float:
    """How much longer a decision takes than with empty tables."""
    (empty,) = (other for other in cells if (other.kind, other.turn) == (cell.kind, "empty"))
    return cell.median_us / empty.median_us - 1


def _memory_targets(weights: Sequence[Weight]) -> Iterator[Target]:
    blocks = max((weight for weight in weights if weight.what != "sessions"), key=Weight.mib_per_million)
    most_mib = DEFAULT_MAX_BYTES / 2**20
    yield Target(
        what="Memory of a million blocks",
        aim=f"< {most_mib:g} MiB (the default budget)",
        measured=f"{blocks.mib_per_million():,.1f} MiB ({blocks.what}, the most)",
        holds=blocks.mib_per_million() < most_mib,
    )
    (sessions,) = (weight for weight in weights if weight.what == "sessions")
    million_bytes = sessions.resident_bytes / sessions.count * 1e6
    yield Target(
        what="Memory of a million sessions",
        aim=f"< {MOST_SESSIONS_BYTES / 1e9:g} GB",
        measured=f"{million_bytes / 1e9:.2f} GB",
        holds=million_bytes < MOST_SESSIONS_BYTES,
    )
    slowest = max(weights, key=lambda weight: weight.collection_ms)
    yield Target(
        what="Pause of a full garbage collection, of a process with one of these tables",
        aim=f"< {MOST_COLLECTION_MS:g} ms",
        measured=f"{slowest.collection_ms:,.1f} ms ({slowest.what}, the slowest)",
        holds=slowest.collection_ms < MOST_COLLECTION_MS,
    )


def _watch_targets(watches: Watches) -> Iterator[Target]:
    most = watches.runs[-1]
    yield Target(
        what=f"Idle CPU of watching {most.endpoints} endpoints",
        aim=f"< {MOST_CORES:g} core",
        measured=f"{most.cores():.2f} cores",
        holds=most.cores() < MOST_CORES,
    )
