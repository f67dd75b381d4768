"""The picture of a search: quality against latency, a dot for every choice of models and thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fairlead.errors import UserError
from fairlead.files import replace_file
from fairlead.tools.figures import png_of, tidy
from fairlead.tools.plan.make import Made

Floats = NDArray[np.float64]

_DOT, _FRONT, _CHOSEN = "#56B4E9", "#0072B2", "#D55E00"  # Okabe and Ito's colours
_MS_PER_S = 1000.0
_LINE_SHARE = 0.06  # of the axis: lines of text that are nearer would overlap


def pareto_front(latency_ms: Floats, quality: Floats) -> NDArray[np.intp]:
    """Indices of the points that no other beats in both, from the fastest to the best."""
    order = np.lexsort((-quality, latency_ms))
    best = np.maximum.accumulate(np.concatenate(([-np.inf], quality[order][:-1])))
    front: NDArray[np.intp] = order[(quality[order] > best) & np.isfinite(latency_ms[order])]
    return front


def write_plot(path: Path, made: Made) -> None:
    """Raises UserError if the file cannot be written."""
    png = png_of(plan_figure(made))
    try:
        replace_file(path, png)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def plan_figure(made: Made) -> Figure:
    plan = made.plan
    front = pareto_front(made.latency_ms, made.quality)
    figure = Figure(figsize=(7.2, 4.8), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.scatter(made.latency_ms / _MS_PER_S, made.quality, s=6, color=_DOT, alpha=0.35, linewidth=0)
    axes.plot(
        made.latency_ms[front] / _MS_PER_S, made.quality[front], color=_FRONT, drawstyle="steps-post",
        label="the best quality within each latency",
    )  # fmt: skip
    chosen_s = max(stage.latency.p95_ms for stage in plan.stages) / _MS_PER_S
    axes.plot(chosen_s, plan.quality, "*", color=_CHOSEN, markersize=15, label=f"this plan: {chosen_s:.3g} s")
    _alone(axes, ((plan.utopia, plan.models[-1]), (plan.nadir, plan.models[0])))
    shown_s = made.latency_ms[front] / _MS_PER_S
    axes.set_xlim(0.9 * shown_s.min(), max(1.15 * shown_s.max(), 1.1 * chosen_s))
    axes.set(xlabel="p95 of the slowest stage, s", ylabel="quality")
    axes.set_title(f"{plan.rate_per_s:g} requests a second on {plan.gpus} GPUs", fontsize=11)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)  # within, it would hide points
    tidy(axes)
    return figure


def _alone(axes: Any, models: Sequence[tuple[float, str]]) -> None:
    """A line at the quality of each model that serves alone, with its name next to the axes; the best first."""
    low, high = axes.get_ylim()
    near = models[0][0] - models[-1][0] < _LINE_SHARE * (high - low)
    for (quality, model), side in zip(models, ("bottom", "top"), strict=True):
        axes.axhline(quality, color="#777777", linewidth=0.8, linestyle="--")
        axes.annotate(
            f"{model} alone".replace("$", r"\$"), (1, quality), (4, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="left", va=side if near else "center", fontsize=8, color="#777777",
        )  # fmt: skip
