"""The picture of one trace: p95 times and cached share by policy, and the distributions of times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FormatStrFormatter,
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
)

from fairlead.tools.estimates import Estimate, estimate
from fairlead.tools.figures import png_of
from fairlead.tools.replay.replay_report import Column, ReplayResults, half_width

_OUR_COLOUR: Final = "#D55E00"
_COLOURS: Final = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666", "#000000", "#8B5A2B")
_STYLES: Final = ("-", "--", ":")
_POINTS: Final = 400
_TICKS: Final = 5  # at most so many, plus one
_FEW_DECADES: Final = 0.7
_MANY_DECADES: Final = 2.5
_MOST_SHARE: Final = 100.0  # percent
_BARS: Final = (
    Column("p95 time to first token, s", "ttft_p95_ms", 2, 1e-3),
    Column("p95 time to the end, s", "e2e_p95_ms", 2, 1e-3),
    Column("cached share of prompt tokens, %", "cached_share", 1, 100.0),
)


def trace_png(results: ReplayResults, trace: str, requests: Path) -> bytes:
    """A PNG; `requests` is the Parquet file of all attempts."""
    return png_of(trace_figure(results, trace, requests))


def trace_figure(results: ReplayResults, trace: str, requests: Path) -> Figure:
    policies = results.policies
    figure = Figure(figsize=(13, 2.2 + 0.26 * len(policies) + 4.2), dpi=110, layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.2 + 0.26 * len(policies), 4.2))
    above, below = halves
    panels = above.subplots(1, len(_BARS), sharey=True)
    for axes, column in zip(panels, _BARS, strict=True):
        _bars(axes, results, trace, column)
    curves = below.subplots(1, 2, sharey=True)
    for axes, field, heading in zip(
        curves, ("first_token_ms", "total_ms"), ("time to first token, s", "time to the end, s"), strict=True
    ):
        _spread(axes, policies, trace, requests, field, heading)
    curves[0].set_ylabel("share of requests that took longer")
    curves[1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    intervals = "95 % intervals, none where seeds are alike" if len(results.of(trace, policies[0])) > 1 else "one seed"
    above.suptitle(f"{trace}: mean over seeds, {intervals}", fontsize=11)
    return figure


def _style(index: int) -> dict[str, Any]:
    """The first policy is the one that others are compared with."""
    if index == 0:
        return {"color": _OUR_COLOUR, "linewidth": 2.4, "zorder": 4}
    which = index - 1
    return {
        "color": _COLOURS[which % len(_COLOURS)],
        "linestyle": _STYLES[which // len(_COLOURS) % len(_STYLES)],
        "linewidth": 1.2,
    }


def _bars(axes: Any, results: ReplayResults, trace: str, column: Column) -> None:
    most = _MOST_SHARE if column.field.endswith("_share") else math.inf
    for index, policy in enumerate(results.policies):
        found = estimate(results.values(trace, policy, column))
        axes.barh(
            index,
            found.mean,
            xerr=None if half_width(found) is None else interval(found, most),
            color=_OUR_COLOUR if index == 0 else "#9db4c8",
            error_kw={"elinewidth": 0.9, "capsize": 2},
        )
    axes.set_yticks(range(len(results.policies)), results.policies, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(_TICKS))
    axes.set_title(column.heading, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def interval(found: Estimate, most: float) -> list[list[float]]:
    """Lengths below and above the mean, of the part of the interval that times and shares can have: 0 to `most`."""
    return [[found.mean - max(0.0, found.low)], [min(most, found.high) - found.mean]]


def _spread(axes: Any, policies: tuple[str, ...], trace: str, requests: Path, field: str, heading: str) -> None:
    answered = pl.scan_parquet(requests).filter((pl.col("trace") == trace) & (pl.col("endpoint") >= 0))
    for index, policy in enumerate(policies):
        times_s = answered.filter(pl.col("policy") == policy).select(pl.col(field).sort() / 1e3).collect()[field]
        count = len(times_s)
        places = sorted({round(count * (1 - 10 ** (-4 * n / _POINTS))) for n in range(_POINTS)} | {count - 1})
        places = [place for place in places if place < count]
        shares = [(count - place) / count for place in places]
        axes.plot([times_s[place] for place in places], shares, label=policy, **_style(index))
    axes.set(xscale="log", yscale="log", xlabel=heading, ylim=(1e-3, 1.05))
    axes.xaxis.set(major_locator=times_locator(*axes.get_xlim()), major_formatter=FormatStrFormatter("%g"))
    axes.yaxis.set(major_locator=LogLocator(), major_formatter=FuncFormatter(_percent))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def times_locator(least_s: float, most_s: float) -> Locator:
    """Ticks that are few enough for their labels to stand apart, and at least two."""
    decades = math.log10(most_s / least_s)
    if decades < _FEW_DECADES:
        return MaxNLocator(_TICKS)
    return LogLocator(subs=(1.0, 2.0, 5.0) if decades < _MANY_DECADES else (1.0,))


def _percent(share: float, _place: object = None) -> str:
    return f"{100.0 * share:g} %"
