"""The report says in plain words what holds, what is missed and what failed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from fairlead.tools.bench.decision import MODEL, Cell
from fairlead.tools.bench.machine import this_machine
from fairlead.tools.bench.report import Report, markdown, write
from fairlead.tools.bench.tables.watches import Watching
from fairlead.tools.bench.through_envoy import SHAPES, Measured, Run, Shape
from fairlead.tools.bench.variants import ALONE, BY_SOCKET, FAIRLEAD, FAIRLEAD_GRPCIO, NULL, NULL_GRPCIO, REWRITING
from tests.tools.bench.tables.test_report import some_tables

RATES = {
    ALONE: 10_000.0,
    NULL: 5000.0,
    NULL_GRPCIO: 2200.0,
    FAIRLEAD: 3900.0,
    FAIRLEAD_GRPCIO: 1300.0,
    REWRITING: 3000.0,
    BY_SOCKET: 4000.0,
}
P50_US = {
    ALONE: 500.0,
    NULL: 1000.0,
    NULL_GRPCIO: 900.0,
    FAIRLEAD: 1600.0,
    FAIRLEAD_GRPCIO: 2000.0,
    REWRITING: 1700.0,
    BY_SOCKET: 1500.0,
}


def a_run(number: int, variant: str, shape: Shape) -> Run:
    return Run(
        round=number,
        variant=variant,
        shape=shape,
        requests_per_s=RATES[variant] * (1 + number),
        p50_us=P50_US[variant],
        p99_us=2 * P50_US[variant],
        requests=100,
        errors=0,
        first_error="",
        decision_us=50.0,
        sidecar_cpu_us=400.0,
        envoy_cpu_us=200.0,
        upstream_cpu_us=20.0,
        sidecar_busy=0.9,
        envoy_busy=0.6,
        upstream_busy=0.1,
        sidecar_resident_bytes=64 << 20,
        envoy_resident_bytes=64 << 20,
    )


def a_report(*, failed: int = 0) -> Report:
    runs = [a_run(number, variant, shape) for number in range(3) for shape in SHAPES for variant in RATES]
    if failed:
        runs[0] = msgspec.structs.replace(runs[0], errors=failed, first_error="answered b'HTTP/1.1 503'")
    return Report(
        "fairlead bench",
        0,
        this_machine(),
        0.5,
        [],
        None,
        Measured({"1 KB": 50_000.0}, dict.fromkeys(set(RATES) - {ALONE}, 5.0), runs),
    )


def test_ratios_are_made_within_a_round_so_a_slow_round_changes_none() -> None:
    holds = {target.what: (target.measured, target.holds) for target in a_report().targets()}

    assert holds["Requests a second, 1 KB, against `listen.server: grpcio`"] == ("3.00 (3.00..3.00) times", True)


def test_a_missed_target_is_told() -> None:
    line = next(line for line in markdown(a_report()).splitlines() if line.startswith("| Added p50"))

    assert "1.10 (1.10..1.10) ms" in line
    assert "**missed**" in line


def test_the_slower_policy_decides_whether_a_decision_holds() -> None:
    cells = [Cell(p, MODEL, "english", 64, 262144, 256, 10, us, us) for p, us in (("laar", 400.0), ("fairlead", 600.0))]
    report = msgspec.structs.replace(a_report(), envoy=None, decision=cells)

    (target,) = report.targets()

    assert (target.measured, target.holds) == ("0.60 ms (fairlead, the slower policy)", False)


def test_failed_requests_are_told_with_the_first_reason() -> None:
    assert "**7 requests failed**; the first, under Envoy alone, 1 KB: answered b'HTTP/1.1 503'" in markdown(
        a_report(failed=7)
    )
    assert "were answered 200" in markdown(a_report())


def test_questions_of_watches_that_failed_are_failed_requests_too() -> None:
    tables = some_tables()
    watches = msgspec.structs.replace(tables.watches, runs=[Watching(10, 10.0, 0.2, 400, failures=3, unread=1)])
    report = msgspec.structs.replace(a_report(failed=2), tables=msgspec.structs.replace(tables, watches=watches))

    assert report.failures() == 6


def test_both_files_are_written_and_the_json_holds_every_run(tmp_path: Path) -> None:
    report = a_report()
    write(report, tmp_path / "new" / "folder")

    document = json.loads((tmp_path / "new" / "folder" / "bench.json").read_text())
    assert len(document["envoy"]["runs"]) == 3 * len(SHAPES) * len(RATES)
    assert document["machine"]["python"].startswith("3.")
    assert document["targets"][0]["holds"] is False
    assert (tmp_path / "new" / "folder" / "bench.md").read_text() == markdown(report)
