"""The comparison as people read it, in Markdown, and as programs do, in JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from fairlead.tools.bench.machine import Machine, machine_facts
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.result_files import write_result
from fairlead.tools.bench.rivals.gateways import DIRECT, NAMES
from fairlead.tools.bench.rivals.measure import Measured, Missing, Run, Shape
from fairlead.tools.bench.rivals.pins import GATEWAY_API, LLM_D
from fairlead.tools.bench.variants import ALONE, FAIRLEAD, FAIRLEAD_GRPCIO


class Report(msgspec.Struct, frozen=True):
    """All of one run."""

    command: str
    seed: int
    machine: Machine
    load_average_after: float
    measured: Measured

    def own_failures(self) -> int:
        """Requests that failed through Fairlead. Those of rivals are shown and are not ours to mend."""
        return sum(run.errors for run in self.measured.runs if run.gateway in (FAIRLEAD, FAIRLEAD_GRPCIO))


def write(report: Report, folder: Path) -> None:
    """rivals.md and rivals.json in `folder`."""
    write_result(folder, "rivals", markdown(report), report)


def markdown(report: Report) -> str:
    facts = machine_facts(report.command, report.seed, report.machine, report.load_average_after)
    parts = [f"# Alongside other gateways\n\n{facts}", _conditions(report)]
    if report.measured.missing:
        parts.append(_missing(report.measured.missing))
    for endpoints in _in_order(run.shape.endpoints for run in report.measured.runs):
        parts += _pool(report.measured, endpoints)
    parts.append(_failures(report.measured.runs))
    return "\n\n".join(parts) + "\n"


def _conditions(report: Report) -> str:
    rounds = max((run.round for run in report.measured.runs), default=-1) + 1
    return (
        f"Medians of {rounds} rounds. In each round, under each load, the gateways take turns; differences and ratios "
        "are made within a round. A gateway that is not measured is paused. Load generator, engines and the measured "
        "gateway share the machine's cores: **on few cores, or alongside other work (see the load average), only CPU a "
        "request and ratios mean anything**; requests/s and p99 are then those of a machine that is short of cores.\n\n"
        f"- *{DIRECT}*: the load generator talks to one engine. *Added* latency is above this.\n"
        f"- *{ALONE}*: Fairlead's Envoy without the processor; it has one worker, as has every Envoy here.\n"
        f"- *{FAIRLEAD}*: `fairlead serve` and its Envoy, default policy; *{FAIRLEAD_GRPCIO}*: on the server that is "
        "chosen by `listen.server: grpcio`.\n"
        "- *sglang-router, smg, vllm-router*: `--policy cache_aware`, otherwise as they come, with their log turned "
        "down to warnings. vllm-router sends every prompt to every engine of the pool to have it tokenized "
        "(`/v1/chat/completions/render`); what that costs the engines is not counted.\n"
        f"- *{LLM_D.name}* and *{GATEWAY_API.name}*: the endpoint picker with its default scorers (queue, KV cache, "
        "prefix), through Envoy with the settings of its own chart: TLS, bodies full duplex. It reads each engine's "
        "metrics every 50 ms, which is part of its CPU a request; *idle* shows how much that is alone.\n\n"
        "Prompts are English chats in 16 variants; requests name no session. CPU and memory are of all processes of a "
        "gateway, its Envoy among them. Values are for the numbers of connections in the order of the heading. Each "
        "connection sends its next request when it has its answer: with several, the added latency is mostly queueing. "
        "*None in time*: no request that was sent while a pass was measured was answered before it ended. A pass is "
        "short, and a picker that wakes from a pause first reads all its engines' metrics, which a large pool feels."
    )


def _missing(missing: Sequence[Missing]) -> str:
    rows = [(each.gateway, each.endpoints, each.reason) for each in missing]
    return "## Not measured\n\n" + table(("Gateway", "Endpoints", "Why"), rows)


def _pool(measured: Measured, endpoints: int) -> Iterator[str]:
    runs = [run for run in measured.runs if run.shape.endpoints == endpoints]
    missing = {each.gateway: each.reason for each in measured.missing if each.endpoints == endpoints}
    yield f"## {endpoints} endpoints"
    for kib in _in_order(run.shape.body_kib for run in runs):
        yield _loads([run for run in runs if run.shape.body_kib == kib], kib, missing)
    idle = {each.gateway: each.cpu_ms_per_s for each in measured.idle if each.endpoints == endpoints}
    rows = [
        (name, f"{idle[name]:.0f}", f"{max(run.resident_bytes for run in runs if run.gateway == name) / 2**20:.0f}")
        if name in idle
        else (name, "not measured", "")
        for name in NAMES
        if name != DIRECT and (name in idle or name in missing)
    ]
    yield "### Idle, and memory\n\n" + table(("", "idle CPU ms/s", "most resident MiB"), rows)


def _loads(runs: Sequence[Run], kib: int, missing: dict[str, str]) -> str:
    connections = _in_order(run.shape.connections for run in runs)
    rows: list[tuple[str, ...]] = []
    for name in NAMES:
        own = [[run for run in runs if (run.gateway, run.shape.connections) == (name, count)] for count in connections]
        if name in missing:
            rows.append((name, "not measured", "", "", "", "", ""))
        elif all(own):
            rows.append((name, *_cells(name, own, runs)))
    heads = (
        "",
        "CPU µs a request",
        f"times {FAIRLEAD}'s",
        "requests/s",
        f"times {FAIRLEAD}'s",
        "added p50 ms",
        "added p99 ms",
    )
    counts = " / ".join(str(count) for count in connections)
    return f"### {kib} KB, {counts} connections\n\n" + table(heads, rows)


def _cells(name: str, own: Sequence[list[Run]], runs: Sequence[Run]) -> Iterator[str]:
    def joined(value: Callable[[Run], float], digits: int, *, base: str = "", is_ratio: bool = False) -> str:
        return " / ".join(_median(each, runs, value, digits, base, is_ratio) for each in own)

    is_direct = name == DIRECT
    yield "" if is_direct else joined(lambda run: run.cpu_us, 0)
    yield "" if is_direct else joined(lambda run: run.cpu_us, 2, base=FAIRLEAD, is_ratio=True)
    yield joined(lambda run: run.requests_per_s, 0)
    yield joined(lambda run: run.requests_per_s, 2, base=FAIRLEAD, is_ratio=True)
    yield "" if is_direct else joined(lambda run: run.p50_us / 1e3, 2, base=DIRECT)
    yield "" if is_direct else joined(lambda run: run.p99_us / 1e3, 2, base=DIRECT)


def _median(
    own: Sequence[Run], runs: Sequence[Run], value: Callable[[Run], float], digits: int, base: str, is_ratio: bool
) -> str:
    """Over the rounds, of the value itself, or of its ratio to or difference from that of `base` in the same round."""
    bases = {(run.round, run.shape): value(run) for run in runs if run.gateway == base}
    values = []
    for run in own:
        if not run.requests_per_s or (is_ratio and not bases[run.round, run.shape]):
            return "none in time"  # latency and CPU of nothing would look like the best of all
        of_base = bases[run.round, run.shape] if base else 0.0
        values.append(value(run) / of_base if is_ratio else value(run) - of_base)
    return f"{statistics.median(values):,.{digits}f}" + ("*" if any(run.errors for run in own) else "")


def _failures(runs: Sequence[Run]) -> str:
    rows = []
    for name in NAMES:
        if failed := [run for run in runs if run.gateway == name and run.errors]:
            first = failed[0]
            rows.append((name, sum(run.errors for run in failed), _load_of(first.shape), first.first_error))
    if not rows:
        return f"All {sum(run.requests for run in runs):,} requests were answered 200."
    heads = ("Gateway", "Requests", "The first with", "Why")
    return "## Failed requests\n\nMarked with * above.\n\n" + table(heads, rows)


def _load_of(shape: Shape) -> str:
    return f"{shape.endpoints} endpoints, {shape.body_kib} KB, {shape.connections} connections"


def _in_order(values: Iterable[int]) -> list[int]:
    return sorted(set(values))
