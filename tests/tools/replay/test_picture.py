"""The picture of a trace: it can be read, and shows no interval that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import polars as pl
import pytest

from fairlead.tools.estimates import estimate
from fairlead.tools.origin import Origin
from fairlead.tools.replay.picture import interval, trace_figure
from fairlead.tools.replay.replay_report import Facts, ReplayResults, half_width, markdown
from fairlead.tools.replay.rows import LatencyTarget, RunSummary
from fairlead.tools.replay.run import RunResult
from tests.tools.pictures import overlaps

POLICIES = ("fairlead", "least_request", "session_affinity:key=prompt@30s")


def a_summary(p95_ms: float) -> RunSummary:
    numbers = dict.fromkeys(RunSummary.__struct_fields__, 1.0) | {"success_by_attempt": (1.0,)}
    numbers |= {"ttft_p95_ms": p95_ms, "e2e_p95_ms": 2 * p95_ms, "cached_share": 0.5}
    for field in ("requests", "attempts", "refused", "dropped", "preemptions", "moves", "moves_back"):
        numbers[field] = 0
    return msgspec.convert(numbers, RunSummary)


def results(*p95_ms: float) -> ReplayResults:
    """The same for all policies, with these times by seed."""
    return ReplayResults(
        [RunResult("t", policy, seed, (), a_summary(ms)) for policy in POLICIES for seed, ms in enumerate(p95_ms)]
    )


def requests(folder: Path, least_ms: float, most_ms: float) -> Path:
    """Times that are spread evenly on a logarithmic axis."""
    times = [least_ms * (most_ms / least_ms) ** (n / 99) for n in range(100)]
    rows = pl.DataFrame({"first_token_ms": times, "total_ms": [2 * ms for ms in times], "endpoint": 0, "trace": "t"})
    path = folder / "requests.parquet"
    pl.concat([rows.with_columns(policy=pl.lit(policy)) for policy in POLICIES]).write_parquet(path)
    return path


@pytest.mark.parametrize("most_ms", [101.0, 130.0, 300.0, 1000.0, 30_000.0, 1e7])
@pytest.mark.parametrize("p95_ms", [(90.0, 110.0), (90_000.0, 1_234_567.0), (0.01, 0.011)])
def test_nothing_lies_over_something_else_whatever_the_times(
    tmp_path: Path, most_ms: float, p95_ms: tuple[float, float]
) -> None:
    figure = trace_figure(results(*p95_ms), "t", requests(tmp_path, 100.0, most_ms))
    assert overlaps(figure) == []
    curves = [axes for axes in figure.get_axes() if axes.get_xscale() == "log"]
    assert all(sum(bool(label.get_text()) for label in axes.get_xticklabels()) >= 2 for axes in curves)


def test_bars_begin_at_0_and_so_do_their_intervals(tmp_path: Path) -> None:
    found = estimate([10.0, 100.0])
    assert found.low < 0
    assert interval(found, float("inf")) == [[found.mean], [found.high - found.mean]]
    assert interval(estimate([60.0, 90.0]), 100.0)[1] == [25.0]
    bars = trace_figure(results(10.0, 100.0), "t", requests(tmp_path, 1.0, 9.0)).get_axes()[:3]
    assert [axes.get_xlim()[0] for axes in bars] == [0.0, 0.0, 0.0]


def test_two_seeds_that_are_alike_give_no_interval() -> None:
    assert half_width(estimate([5.0, 5.0])) is None
    assert half_width(estimate([5.0])) is None
    assert half_width(estimate([0.0, 0.0])) is None
    assert half_width(estimate([5.0, 5.1])) is not None


def test_a_table_has_no_interval_where_seeds_are_alike_and_never_one_of_0() -> None:
    facts = Facts(Origin("x", "y", "z"), 2, (0, 1), LatencyTarget())
    assert "±" not in markdown(results(5.0, 5.0), facts).split("## How to read it")[0]
    told = markdown(results(5.0, 5.01), facts)
    assert "5 ± <1" in told
    assert not re.search(r"± 0(\.0+)? ", told)


def test_one_seed_says_so(tmp_path: Path) -> None:
    figure = trace_figure(results(5.0), "t", requests(tmp_path, 1.0, 9.0))
    assert "one seed" in figure.subfigs[0].get_suptitle()
