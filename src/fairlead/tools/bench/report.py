"""The result as people read it, in Markdown, and as programs do, in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from fairlead.tools.bench.bodies import KINDS
from fairlead.tools.bench.decision import ENDPOINTS, MODEL, POLICIES, ROUTE, SIZES_KIB, Cell, slopes
from fairlead.tools.bench.machine import Machine, machine_facts
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.result_files import write_result
from fairlead.tools.bench.tables.report import sections as tables_sections
from fairlead.tools.bench.tables.run import Tables
from fairlead.tools.bench.tables.targets import tables_targets
from fairlead.tools.bench.targets import Target, added_us, decision_targets, envoy_targets, share_of
from fairlead.tools.bench.through_envoy import CONNECTIONS, SATURATED, STEADY_RATE_PER_S, Measured, Run, Shape
from fairlead.tools.bench.variants import ALONE, NULL, VARIANTS
from fairlead.tools.bench.variants import ENDPOINTS as UPSTREAMS
from fairlead.tools.estimates import spread


class Report(msgspec.Struct, frozen=True):
    """All of one run; a part that was not asked for is empty or None."""

    command: str
    seed: int
    machine: Machine
    load_average_after: float
    decision: list[Cell]
    tables: Tables | None
    envoy: Measured | None

    def targets(self) -> list[Target]:
        aims = list(decision_targets(self.decision))
        if self.tables is not None:
            aims += tables_targets(self.tables)
        if self.envoy is not None:
            aims += envoy_targets(self.envoy.runs)
        return aims

    def failures(self) -> int:
        """Requests that failed, to engines by watches among them."""
        return sum(part.failures() for part in (self.tables, self.envoy) if part is not None)


def write(report: Report, folder: Path) -> None:
    """bench.md and bench.json in `folder`."""
    document = msgspec.to_builtins(report) | {"targets": msgspec.to_builtins(report.targets())}
    write_result(folder, "bench", markdown(report), document)


def markdown(report: Report) -> str:
    facts = machine_facts(report.command, report.seed, report.machine, report.load_average_after)
    parts = [f"# Benchmark\n\n{facts}", _targets(report.targets())]
    if report.decision:
        parts += list(_decision(report.decision))
    if report.tables is not None:
        parts += list(tables_sections(report.tables))
    if report.envoy is not None:
        parts += list(_envoy(report.envoy))
    return "\n\n".join(parts) + "\n"


def _targets(targets: Iterable[Target]) -> str:
    rows = [(t.what, t.aim, t.measured, "holds" if t.holds else "**missed**") for t in targets]
    return "## Targets\n\n" + table(("What", "Target", "Measured", ""), rows)


def _decision(cells: list[Cell]) -> Iterator[str]:
    repeats = [cell.repeats for cell in cells]
    yield (
        "## A decision\n\nFrom the whole body in hand to the endpoint: parse, facts, candidates, rank, ticket, record; "
        f"no gRPC. Microseconds, median / p99 of {min(repeats)} to {max(repeats)} repeats."
    )
    for policy in POLICIES:
        yield f"### Policy {policy}\n\n" + _matrix([c for c in cells if (c.policy, c.asked) == (policy, MODEL)])
    rewritten = [c for c in cells if c.asked == ROUTE]
    yield "### Asked for a route: the body is rewritten for the chosen model (fairlead)\n\n" + _matrix(rewritten)
    rows = []
    for policy in POLICIES:
        for kind in KINDS:
            by_endpoint, by_kib = slopes(cells, policy, kind)
            slope_texts = [f"{slope:.2f} (R² {r_squared:.3f})" for slope, r_squared in (by_endpoint, by_kib)]
            rows.append((policy, kind, *slope_texts))
    yield (
        "### Growth\n\nLeast squares over all cells of a kind of body: per endpoint with the body held, per KiB with "
        "the endpoints held.\n\n" + table(("Policy", "Body", "µs an endpoint", "µs a KiB"), rows)
    )


def _matrix(cells: list[Cell]) -> str:
    by_place = {(c.kind, c.endpoints, c.size_kib): c for c in cells}
    rows = [
        (kind, endpoints, *(_times(by_place[kind, endpoints, size]) for size in SIZES_KIB))
        for kind in KINDS
        for endpoints in ENDPOINTS
        if (kind, endpoints, SIZES_KIB[0]) in by_place
    ]
    return table(("Body", "Endpoints", *(f"{size} KB" for size in SIZES_KIB)), rows)


def _times(cell: Cell) -> str:
    return f"{cell.median_us:,.0f} / {cell.p99_us:,.0f}"


def _envoy(measured: Measured) -> Iterator[str]:
    runs = measured.runs
    rounds = max(run.round for run in runs) + 1
    yield (
        f"## Through Envoy\n\n{UPSTREAMS} upstream addresses, {CONNECTIONS} connections, medians of {rounds} rounds "
        "with their least and most; the variants take turns in each round, ratios are made within a round. Load "
        "generator, Envoy (one worker), sidecar and upstream are one process each, not pinned, on the cores named "
        "above: with two cores they compete, and only ratios within this run mean anything.\n\n"
        "- Envoy alone: the bootstrap of `fairlead envoy` without the processor.\n"
        "- null processor: the same messages and kinds of replies, all constant, on the edge of our own; and on "
        "grpc.aio, with the setting of gRPC's core that Fairlead runs it with.\n"
        "- Fairlead: `fairlead serve`, a served model asked by name; and with `listen: {server: grpcio}`.\n"
        "- Fairlead, route: a route asked for, so that the rewritten body goes back to Envoy.\n"
        "- Fairlead, unix socket: as Fairlead; Envoy reaches the sidecar by a socket, as in deploy/envoy/unix-socket."
    )
    alone = ", ".join(f"{rate:,.0f} a second at {shape}" for shape, rate in measured.upstream_per_s.items())
    yield f"The upstream, an asyncio protocol on uvloop, answers without Envoy in between: {alone}."
    for shape in SATURATED:
        yield f"### Saturated, {shape}\n\n" + _saturated(runs, shape)
    yield f"### {STEADY_RATE_PER_S:g} requests a second, 1 KB\n\n" + _steady(measured)
    yield (
        "A decision takes longer here than in the first table: there it follows another, here other code runs between "
        "two, and caches are cold. "
        "The CPU time at this rate holds what the sidecar uses without any request, shown as idle: Fairlead probes its "
        "engines, the null processor probes nothing."
    )
    errors = sum(run.errors for run in runs)
    if errors:
        first = next(run for run in runs if run.errors)
        yield f"**{errors} requests failed**; the first, under {first.variant}, {first.shape}: {first.first_error}"
    else:
        yield f"All {sum(run.requests for run in runs):,} requests were answered 200 by the chosen upstream."


def _saturated(runs: Sequence[Run], shape: Shape) -> str:
    rows = []
    for name in VARIANTS:
        own = _of(runs, shape, name)
        rows.append(
            (
                name,
                spread([run.requests_per_s for run in own]).text(),
                share_of(runs, shape, name, ALONE).text(2),
                share_of(runs, shape, name, NULL).text(2),
                _decision_us(own),
                spread([run.sidecar_cpu_us for run in own]).text() if name != ALONE else "",
                spread([run.envoy_cpu_us for run in own]).text(),
                " / ".join(
                    f"{spread(list(busy)).median:.2f}"
                    for busy in zip(*((r.sidecar_busy, r.envoy_busy, r.upstream_busy) for r in own), strict=True)
                ),
            )
        )
    heads = (
        "",
        "Requests/s",
        "of alone",
        "of null",
        "Decision µs",
        "Sidecar CPU µs",
        "Envoy CPU µs",
        "Cores: sidecar/Envoy/upstream",
    )
    return table(heads, rows)


def _steady(measured: Measured) -> str:
    runs = measured.runs
    rows = []
    for name in VARIANTS:
        own = _of(runs, "steady", name)
        added = [added_us(runs, name, quantile).text() if name != ALONE else "" for quantile in ("p50_us", "p99_us")]
        resident_mib = max(run.sidecar_resident_bytes for run in own) / 2**20
        rows.append(
            (
                name,
                spread([run.p50_us for run in own]).text(),
                spread([run.p99_us for run in own]).text(),
                *added,
                _decision_us(own),
                spread([run.sidecar_cpu_us for run in own]).text() if name != ALONE else "",
                f"{measured.idle_cpu_ms_per_s[name]:.0f}" if name != ALONE else "",
                f"{resident_mib:.0f}" if name != ALONE else "",
            )
        )
    heads = (
        "",
        "p50 µs",
        "p99 µs",
        "added p50 µs",
        "added p99 µs",
        "Decision µs",
        "Sidecar CPU µs",
        "idle ms/s",
        "RSS MiB",
    )
    return table(heads, rows)


def _decision_us(runs: Sequence[Run]) -> str:
    return spread([run.decision_us for run in runs]).text() if any(run.decision_us for run in runs) else ""


def _of(runs: Sequence[Run], shape: Shape, variant: str) -> list[Run]:
    return [run for run in runs if (run.shape, run.variant) == (shape, variant)]
