"""The report shows every rival: its figures, or why there are none."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from fairlead.tools.bench.machine import this_machine
from fairlead.tools.bench.rivals.gateways import DIRECT
from fairlead.tools.bench.rivals.measure import Idle, Measured, Missing, Run, Shape
from fairlead.tools.bench.rivals.pins import LLM_D, SMG
from fairlead.tools.bench.rivals.report import Report, markdown, write
from fairlead.tools.bench.variants import FAIRLEAD

CPU_US = {DIRECT: 0.0, FAIRLEAD: 300.0, SMG.title: 150.0}
RATES = {DIRECT: 9000.0, FAIRLEAD: 3000.0, SMG.title: 6000.0}
P50_US = {DIRECT: 100.0, FAIRLEAD: 1100.0, SMG.title: 400.0}


def a_run(number: int, gateway: str, connections: int) -> Run:
    slow = 1 + number  # each round finds the machine slower than the one before
    return Run(
        round=number,
        gateway=gateway,
        shape=Shape(4, 64, connections),
        requests_per_s=RATES[gateway] / slow,
        p50_us=P50_US[gateway] * slow,
        p99_us=2 * P50_US[gateway] * slow,
        cpu_us=CPU_US[gateway] * slow,
        resident_bytes=64 << 20,
        requests=100,
        errors=0,
        first_error="",
    )


def a_report() -> Report:
    runs = [a_run(number, gateway, count) for number in range(3) for count in (1, 16) for gateway in CPU_US]
    idle = [Idle(gateway, 4, 7.0) for gateway in CPU_US]
    missing = [Missing(LLM_D.title, 4, "there is no `go` here")]
    return Report("fairlead bench-rivals --seed 7", 7, this_machine(), 0.5, Measured(runs, idle, missing))


def row(text: str, name: str, heading: str) -> list[str]:
    lines = text[text.index(heading) :].splitlines()
    return [cell.strip() for cell in next(line for line in lines if line.startswith(f"| {name} |")).split("|")[1:-1]]


def with_errors(report: Report, gateway: str) -> Report:
    runs = [
        msgspec.structs.replace(run, errors=2, first_error="answered b'HTTP/1.1 503'")
        if run.gateway == gateway
        else run
        for run in report.measured.runs
    ]
    return msgspec.structs.replace(report, measured=msgspec.structs.replace(report.measured, runs=runs))


def test_it_says_how_and_where_it_ran() -> None:
    text = markdown(a_report())
    for fact in ("Command: `fairlead bench-rivals --seed 7`", "Seed: 7", "Commit: ", "Machine: ", "Load average"):
        assert fact in text


def test_values_are_medians_and_ratios_are_within_a_round() -> None:
    text = markdown(a_report())
    assert row(text, SMG.title, "### 64 KB, 1 / 16 connections") == [
        SMG.title,
        "300 / 300",
        "0.50 / 0.50",
        "3,000 / 3,000",
        "2.00 / 2.00",
        "0.60 / 0.60",
        "1.20 / 1.20",
    ]


def test_a_rival_that_was_not_measured_is_in_every_table_and_its_reason_above() -> None:
    text = markdown(a_report())
    assert row(text, LLM_D.title, "## Not measured") == [LLM_D.title, "4", "there is no `go` here"]
    assert row(text, LLM_D.title, "### 64 KB")[1] == "not measured"
    assert row(text, LLM_D.title, "### Idle")[1] == "not measured"


def test_failed_requests_of_a_rival_are_marked_explained_and_not_ours() -> None:
    report = with_errors(a_report(), SMG.title)
    text = markdown(report)
    assert row(text, SMG.title, "### 64 KB")[1] == "300* / 300*"
    assert row(text, SMG.title, "## Failed requests") == [
        SMG.title,
        "12",
        "4 endpoints, 64 KB, 1 connections",
        "answered b'HTTP/1.1 503'",
    ]
    assert report.own_failures() == 0


def test_a_gateway_that_answered_nothing_in_time_has_no_figures() -> None:
    report = a_report()
    runs = [
        msgspec.structs.replace(run, requests=1, requests_per_s=0.0, p50_us=0.0) if run.gateway == SMG.title else run
        for run in report.measured.runs
    ]
    text = markdown(msgspec.structs.replace(report, measured=msgspec.structs.replace(report.measured, runs=runs)))
    assert set(row(text, SMG.title, "### 64 KB")[1:]) == {"none in time / none in time"}


def test_failures_of_fairlead_are_counted() -> None:
    assert with_errors(a_report(), FAIRLEAD).own_failures() == 12


def test_both_files_are_written(tmp_path: Path) -> None:
    report = a_report()
    write(report, tmp_path / "results")
    assert (tmp_path / "results" / "rivals.md").read_text() == markdown(report)
    document = json.loads((tmp_path / "results" / "rivals.json").read_text())
    assert (document["seed"], len(document["measured"]["runs"])) == (7, 18)
