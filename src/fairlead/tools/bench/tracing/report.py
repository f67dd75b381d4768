"""The result as people read it, in Markdown, and as programs do, in JSON."""

from __future__ import annotations

from pathlib import Path

from fairlead.tools.bench.machine import machine_facts
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.result_files import write_result
from fairlead.tools.bench.through_envoy import CONNECTIONS, STEADY_RATE_PER_S, Run, Shape
from fairlead.tools.bench.tracing.run import OFF, SAMPLES, SHAPES, TracingReport
from fairlead.tools.estimates import spread


def write(report: TracingReport, folder: Path) -> None:
    """tracing.md and tracing.json in `folder`."""
    write_result(folder, "tracing", markdown(report), report)


def markdown(report: TracingReport) -> str:
    facts = machine_facts(report.command, report.seed, report.machine, report.load_average_after)
    rounds = max(run.round for run in report.runs) + 1
    heads = ("Tracing", "Load", "Requests/s", "p50 µs", "p99 µs", "Sidecar CPU µs", "CPU more than off µs", "Traced")
    rows = [
        (
            name,
            _load(shape),
            *_cells(report.runs, name, shape),
            f"{report.traced[name]:,}" if shape == SHAPES[0] else "",
        )
        for shape in SHAPES
        for name in SAMPLES
    ]
    errors = sum(run.errors for run in report.runs)
    requests = sum(run.requests for run in report.runs)
    ending = f"**{errors:,} of {requests:,} requests failed.**" if errors else f"All {requests:,} requests were served."
    return (
        f"# What tracing costs the path of a request\n\n{facts}\n\n"
        f"Medians of {rounds} rounds with their least and most, {CONNECTIONS} connections; the variants take turns in "
        "each round, each round begins with another one, and differences are made within a round. *Off, a second "
        "sidecar* has nothing on that *off* has not: what it differs by is this machine's noise. CPU is that of the "
        "sidecar for each request; it makes spans after a request's end, so what is sampled costs CPU and no latency "
        "until a core is full. *Traced*: requests of all loads, warm-ups among them.\n\n"
        f"{table(heads, rows)}\n\n{ending} The collector took {report.posts:,} posts.\n"
    )


def _load(shape: Shape) -> str:
    return f"1 KB, {STEADY_RATE_PER_S:g} a second" if shape == "steady" else f"{shape}, saturated"


def _cells(runs: list[Run], name: str, shape: Shape) -> tuple[str, ...]:
    own = _by_round(runs, name, shape)
    off = _by_round(runs, OFF, shape)
    more = spread([own[number].sidecar_cpu_us - off[number].sidecar_cpu_us for number in own])
    return (
        spread([run.requests_per_s for run in own.values()]).text(),
        spread([run.p50_us for run in own.values()]).text(),
        spread([run.p99_us for run in own.values()]).text(),
        spread([run.sidecar_cpu_us for run in own.values()]).text(),
        "" if name == OFF else more.text(1, "+"),
    )


def _by_round(runs: list[Run], name: str, shape: Shape) -> dict[int, Run]:
    return {run.round: run for run in runs if (run.variant, run.shape) == (name, shape)}
