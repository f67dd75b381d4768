"""What tracing costs: briefly, with real Envoys, sidecars and a collector; and the table that is made of it."""

from __future__ import annotations

import pytest

from fairlead.tools.bench.machine import Machine
from fairlead.tools.bench.through_envoy import Effort, Run, Shape
from fairlead.tools.bench.tracing import run as module
from fairlead.tools.bench.tracing.report import markdown
from fairlead.tools.bench.tracing.run import ALL, OFF, OFF_AGAIN, ONE_PERCENT, SAMPLES, SHAPES, UNSAMPLED, TracingReport


def a_run(number: int, variant: str, shape: Shape, cpu_us: float) -> Run:
    return Run(number, variant, shape, 1000.0, 500.0, 900.0, 100, 0, "", 50.0, cpu_us, 1.0, 1.0, 0.5, 0.5, 0.5, 1, 1)


def a_report(*, rounds: int = 3, errors: int = 0) -> TracingReport:
    """Round by round the machine gets slower, for all alike; all sampled cost 50 us more."""
    runs = [
        a_run(number, variant, shape, 100.0 * (1 + number) + (50.0 if variant == ALL else 0.0))
        for number in range(rounds)
        for shape in SHAPES
        for variant in SAMPLES
    ]
    runs[0] = Run(**{name: getattr(runs[0], name) for name in Run.__struct_fields__} | {"errors": errors})
    machine = Machine("today", "abc", "a cpu", 2, "Linux", "3.11", "1.40", 0.5)
    return TracingReport("fairlead bench-tracing", 0, machine, 0.6, dict.fromkeys(SAMPLES, 7), 12, runs)


@pytest.mark.stack
@pytest.mark.slow
def test_the_variants_take_turns_and_differ_in_what_they_trace() -> None:
    effort, done = Effort(rounds=2, saturated_s=0.2, steady_s=0.2), []

    report = module.run("x", 0, effort, lambda: done.append(1))

    assert [each.first_error for each in report.runs if each.errors] == []
    assert len(done) == module.steps(effort) == len(report.runs)
    first = [each.variant for each in report.runs if each.shape == "1 KB"]
    assert first == [*SAMPLES, *list(SAMPLES)[1:], OFF], "another one begins each round"
    assert [report.traced[name] for name in (OFF, OFF_AGAIN, UNSAMPLED)] == [0, 0, 0]
    assert report.traced[ALL] > 10 * report.traced[ONE_PERCENT]
    assert report.posts > 0


def test_differences_are_made_within_a_round() -> None:
    rows = [line for line in markdown(a_report()).splitlines() if "1 KB, saturated" in line]
    assert [row.split(" | ")[6] for row in rows] == ["", *["+0.0 (+0.0..+0.0)"] * 3, "+50.0 (+50.0..+50.0)"]
    assert "| 250 (150..350) |" in rows[-1]


def test_the_report_says_how_it_was_made_and_what_failed() -> None:
    text = markdown(a_report(errors=4))
    assert "- Command: `fairlead bench-tracing`" in text
    assert "- Load average before and after: 0.50, 0.60" in text
    assert "**4 of 4,500 requests failed.**" in text
