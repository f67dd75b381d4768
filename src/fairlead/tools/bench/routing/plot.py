"""The picture: for each cell, p95 time to first token against the cached share of prompt tokens, one point a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from fairlead.tools.bench.routing.run import OURS, Cell, Results
from fairlead.tools.estimates import Estimate, estimate
from fairlead.tools.figures import png_of, tidy

# Okabe and Ito's colours but their yellow, too pale for thin lines; the markers tell policies apart without any.
_COLOURS: Final = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#CC79A7", "#666666", "#000000", "#8B5A2B")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<")
_OUR_COLOUR: Final = "#D55E00"
_PANEL_INCHES: Final = (4.6, 4.2)


def write_plot(path: Path, results: Results) -> None:
    """One PNG with a panel a cell."""
    cells = results.plan.cells
    figure = Figure(figsize=(_PANEL_INCHES[0] * len(cells), _PANEL_INCHES[1] + 1.0), dpi=120, layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(cells)))
    for axes, cell in zip(panels, cells, strict=True):
        _panel(axes, results, cell)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    path.write_bytes(png_of(figure))


def _panel(axes: Any, results: Results, cell: Cell) -> None:
    rivals = [policy for policy in results.plan.policies if policy != OURS]
    for index, policy in enumerate([*rivals, OURS]):
        runs = results.of(cell.name, policy)
        share = estimate([100 * run.cached_share for run in runs])
        ttft_ms = estimate([run.ttft_p95_ms for run in runs])
        is_ours = policy == OURS
        axes.errorbar(
            share.mean,
            ttft_ms.mean,
            xerr=_arms(share),
            yerr=_arms(ttft_ms),
            fmt="*" if is_ours else _MARKERS[index % len(_MARKERS)],
            color=_OUR_COLOUR if is_ours else _COLOURS[index % len(_COLOURS)],
            markersize=15 if is_ours else 7,
            elinewidth=0.9,
            alpha=0.95,
            zorder=4 if is_ours else 3,
            label=policy,
        )
    axes.set_title(f"{cell.name}\n{cell.clients} clients, {results.plan.repeats} repeats, 95 % intervals", fontsize=11)
    axes.set(xlabel="cached share of prompt tokens, %", ylabel="p95 time to first token, ms")
    axes.set_ylim(bottom=0)
    tidy(axes)


def _arms(found: Estimate) -> list[list[float]]:
    return [[found.mean - found.low], [found.high - found.mean]]
