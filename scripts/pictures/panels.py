"""A Grafana dashboard drawn by matplotlib, panel by panel, from the answers of a real Prometheus.

It is no Grafana: titles, units, legends and `$__rate_interval` follow Grafana's rules, colours and sizes do not.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from PIL import Image

COLUMNS: Final = 2
_PANEL_INCHES: Final = (6.0, 2.5)
_DPI: Final = 95
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#666666", "#8B5A2B", "#000000")
_STYLES: Final = ("-", "--", ":")
_LEGEND_CHARACTERS: Final = 92  # that fit in a line below a panel
_MARK_CHARACTERS: Final = 7  # that a line's sample takes
_MOST_LEGENDS: Final = 12
_LABEL: Final = re.compile(r"{{\s*(\w+)\s*}}")
_TIMES: Final = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (60.0, 1.0, "s"), (math.inf, 1 / 60, "min"))


class Line(NamedTuple):
    legend: str
    at_s: Sequence[float]  # before the end of the window, so below 0
    values: Sequence[float]


class Drawn(NamedTuple):
    """A panel and what its queries answered."""

    title: str
    unit: str
    lines: Sequence[Line]
    note: str = ""  # why nothing but 0 is to be seen, without a fault


def legend(form: str, labels: Mapping[str, str]) -> str:
    """What Grafana makes of a legend's form; a label that a series lacks is nothing."""
    return " ".join(_LABEL.sub(lambda found: labels.get(found[1], ""), form).split())


def shown(value: float, unit: str) -> str:
    """As Grafana writes a value of this unit. Raises KeyError for a unit that no dashboard had before."""
    if value == 0 and unit != "bool":
        return "0"
    size = abs(value)
    if unit == "s":
        factor, name = next((factor, name) for below, factor, name in _TIMES if size < below)
        return f"{value * factor:.3g} {name}"
    if unit == "bytes":
        power = _power_of_1024(size)
        return f"{value / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
    if unit == "short":
        power = min(4, int(math.log10(size) / 3)) if size >= 1000 else 0
        return f"{value / 1000**power:.3g}{('', ' K', ' Mil', ' Bil', ' Tri')[power]}"
    return {
        "percentunit": lambda: f"{100 * value:.3g}%",
        "reqps": lambda: f"{value:.3g} req/s",
        "bool": lambda: {0.0: "False", 1.0: "True"}.get(value, ""),
    }[unit]()


def _power_of_1024(size: float) -> int:
    return min(4, int(math.log(size, 1024))) if size >= 1 else 0


def dashboard_picture(title: str, subtitle: str, panels: Sequence[Drawn]) -> Image.Image:
    png = io.BytesIO()
    dashboard_figure(title, subtitle, panels).savefig(png, format="png")
    return Image.open(png)


def dashboard_figure(title: str, subtitle: str, panels: Sequence[Drawn]) -> Figure:
    rows = math.ceil(len(panels) / COLUMNS)
    size = (COLUMNS * _PANEL_INCHES[0], rows * _PANEL_INCHES[1] + 0.6)
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    figure.suptitle(f"{title}\n", fontsize=13, fontweight="bold", x=0.01, ha="left")
    figure.text(0.01, 1 - 0.36 / size[1], subtitle, fontsize=8, color="#555555", va="top")
    grid: Any = figure.subplots(rows, COLUMNS, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw(axes, panel)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    return figure


def _draw(axes: Axes, panel: Drawn) -> None:
    axes.set_title(panel.title, fontsize=9.5, fontweight="bold", loc="left")
    styles = cycle([(colour, style) for style in _STYLES for colour in _COLOURS])
    for line, (colour, style) in zip(panel.lines, styles, strict=False):
        axes.plot(line.at_s, line.values, color=colour, linestyle=style, linewidth=1.2, label=line.legend)
    greatest = max((v for line in panel.lines for v in line.values if math.isfinite(v)), default=0.0) or 1.0
    axes.set_ylim(0, 1.08 * greatest)
    scale = 1024.0 ** _power_of_1024(greatest) if panel.unit == "bytes" else 1.0
    ticks = [0, 1] if panel.unit == "bool" else MaxNLocator(4, min_n_ticks=2).tick_values(0, greatest / scale)
    axes.yaxis.set_major_locator(FixedLocator([scale * tick for tick in ticks if scale * tick <= 1.08 * greatest]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, panel.unit)))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[3, 6, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at_s, _: "now" if at_s == 0 else f"{at_s / 60:g} min"))
    axes.tick_params(labelsize=7.5, color="#999999")
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_color("#cccccc")
    if panel.note:
        axes.text(0.5, 0.5, panel.note, transform=axes.transAxes, ha="center", va="center", fontsize=8, color="#777777")
    _legend(axes)


def _legend(axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    if len(names) > _MOST_LEGENDS:
        left = len(names) - _MOST_LEGENDS
        (more,) = axes.plot([], [], color="none")
        handles, names = [*handles[:_MOST_LEGENDS], more], [*names[:_MOST_LEGENDS], f"and {left} more"]
    columns = max(1, min(len(names), _LEGEND_CHARACTERS // (max(map(len, names)) + _MARK_CHARACTERS)))
    axes.legend(
        handles, names, loc="upper left", bbox_to_anchor=(-0.02, -0.1), ncols=columns, fontsize=7.5, frameon=False,
        handlelength=1.6, columnspacing=1.4, handletextpad=0.5, borderaxespad=0.2, labelspacing=0.25,
    )  # fmt: skip
