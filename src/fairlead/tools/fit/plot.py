"""The picture of a fitted family: are the probabilities honest, and which model is best where."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS, bucket_names
from fairlead.files import replace_file
from fairlead.tools.figures import png_of, tidy
from fairlead.tools.fit.capability_model import FittedModel
from fairlead.tools.fit.quality import Predictions

# Okabe and Ito's colours, distinguishable for colour-blind readers; further models differ in their dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
_DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
_LANGUAGE_TITLES = {
    "en": "English (Latin letters)", "ja": "Japanese", "zh": "Chinese", "ko": "Korean", "ru": "Russian (Cyrillic)",
    "el": "Greek", "he": "Hebrew", "ar": "Arabic", "hi": "Hindi", "th": "Thai", "bn": "Bengali",
    "pa": "Punjabi", "gu": "Gujarati", "ta": "Tamil", "te": "Telugu", "kn": "Kannada", "ml": "Malayalam",
    "si": "Sinhala", "ka": "Georgian", "hy": "Armenian", "am": "Amharic", "km": "Khmer", "my": "Burmese", "lo": "Lao",
    "other": "Other scripts",
}  # fmt: skip
_GREY = "#777777"
_CALIBRATION_INCHES = 4.4
_PANEL_INCHES = (4.0, 3.3)
_TITLE_INCHES = 0.5
_MOST_COLUMNS = 3
_MOST_DOT_AREA = 90.0


def write_plot(path: Path, models: Sequence[FittedModel]) -> None:
    """One PNG for the family that all `models` belong to: calibration at the left, accuracy at the right."""
    seen = sum(fitted.right + fitted.wrong for fitted in models)
    languages = np.flatnonzero(np.asarray(seen).sum(axis=1))
    columns = min(_MOST_COLUMNS, len(languages))
    rows = ceil(len(languages) / columns)
    # The legend stands below the calibration: more models make the picture taller, never the panels smaller.
    height = max(_PANEL_INCHES[1] * rows, _CALIBRATION_INCHES + 0.7 + 0.22 * len(models)) + _TITLE_INCHES
    figure = Figure(figsize=(_CALIBRATION_INCHES + _PANEL_INCHES[0] * columns, height), dpi=120, layout="constrained")
    figure.suptitle(f"{_plain(models[0].task)}: how likely is a right answer?", fontsize=14, fontweight="bold")
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=(_CALIBRATION_INCHES, _PANEL_INCHES[0] * columns)))
    above, below = np.asarray(
        left.subfigures(2, 1, height_ratios=(_CALIBRATION_INCHES, height - _TITLE_INCHES - _CALIBRATION_INCHES))
    )
    _calibration(above.subplots(), Predictions.joined([fitted.held_out for fitted in models]))
    below.legend(handles=_legend(models), loc="upper center", frameon=False, fontsize=9)
    panels = right.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    most = max(float((fitted.right + fitted.wrong).max()) for fitted in models)
    for panel, language in zip(panels, languages, strict=False):
        _accuracy(panel, models, int(language), most)
    for panel in panels[len(languages) :]:
        panel.axis("off")
    replace_file(path, png_of(figure))


def _calibration(axes: Any, held_out: Predictions) -> None:
    """Reliability diagram, with the 95 % interval that chance alone allows each point."""
    points = held_out.reliability()
    predicted, observed, count = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    low, high = _wilson(observed, count)
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle="--")
    axes.errorbar(predicted, observed, [observed - low, high - observed], fmt="none", ecolor=_COLOURS[0], alpha=0.5)
    axes.scatter(predicted, observed, s=15 + _MOST_DOT_AREA * count / count.max(), color=_COLOURS[0], zorder=3)
    axes.text(0.97, 0.05, "on the dashed line:\nas right as predicted", ha="right", fontsize=8, color=_GREY)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="predicted probability", ylabel="observed rate")
    axes.set_aspect("equal")
    error = held_out.calibration_error()
    axes.set_title(f"Calibration on {held_out.rows():,} held-out attempts\n(mean error {error:.3f})", fontsize=11)
    tidy(axes)


def _accuracy(axes: Any, models: Sequence[FittedModel], language: int, most: float) -> None:
    """Lines are fitted, pale outside the lengths seen. Dots are observed rates, larger for more attempts."""
    buckets = np.arange(len(BUCKETS))
    for index, fitted in enumerate(models):
        colour, dashes = _style(index)
        count = fitted.right[language] + fitted.wrong[language]
        at = np.flatnonzero(count)
        line = {"color": colour, "linestyle": dashes, "linewidth": 1.6}
        axes.plot(buckets, fitted.probability[language], alpha=0.3, **line)
        seen = slice(at[0], at[-1] + 1) if len(at) else slice(0)
        axes.plot(buckets[seen], fitted.probability[language][seen], **line)
        shift = (index - (len(models) - 1) / 2) * min(0.08, 0.5 / len(models))
        axes.scatter(
            at + shift,
            fitted.right[language][at] / count[at],
            s=6 + _MOST_DOT_AREA * count[at] / most,
            color=colour,
            alpha=0.65,
            edgecolor="white",
            linewidth=0.7,
            zorder=3,
        )
    total = sum(int((fitted.right[language] + fitted.wrong[language]).sum()) for fitted in models)
    axes.set_title(f"{_LANGUAGE_TITLES[LANGUAGES[language]]}: {total:,} attempts", fontsize=11)
    axes.set_xticks(buckets, bucket_names(models[0].first_bucket_tokens), fontsize=9)
    axes.set(ylim=(-0.03, 1.03), xlabel="prompt length in tokens")
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("probability of a right answer")
    tidy(axes)


def _legend(models: Sequence[FittedModel]) -> list[Line2D]:
    handles = []
    for index, fitted in enumerate(models):
        colour, dashes = _style(index)
        handles.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=1.6, label=_plain(fitted.model)))
    handles.append(Line2D([], [], color=_GREY, label="fitted; pale where extrapolated"))
    dot = Line2D([], [], linestyle="none", marker="o", markersize=8, markeredgecolor="white", color=_GREY)
    dot.set_label("observed; larger dot, more attempts")
    handles.append(dot)
    return handles


def _style(index: int) -> tuple[str, Literal["-", "--", ":", "-."]]:
    return _COLOURS[index % len(_COLOURS)], _DASHES[index // len(_COLOURS) % len(_DASHES)]


def _plain(name: str) -> str:
    """Matplotlib reads text between dollar signs as a formula, and hides a label that starts with an underscore."""
    return "\u200b" + name.replace("$", r"\$") if name.startswith("_") else name.replace("$", r"\$")


def _wilson(rate: Any, count: Any) -> tuple[Any, Any]:
    """95 % interval of a rate seen in `count` attempts; unlike the normal one it stays inside 0 to 1."""
    z = 1.96
    centre = (rate + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(rate * (1 - rate) / count + z**2 / (4 * count**2))
    return np.minimum(centre - half, rate), np.maximum(centre + half, rate)
