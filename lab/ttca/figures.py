"""The two figures of the LAAR paper's evaluation (3 and 4), drawn from our results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from matplotlib.figure import Figure

from fairlead.tools.demo.traffic import MAX_ATTEMPTS
from fairlead.tools.figures import png_of, tidy
from lab import words
from lab.ttca.measure import BASELINES, LENGTHS_TOKENS, POLICIES, Asked, Results
from lab.ttca.report import compared

# Okabe and Ito's colours except yellow, too pale for thin lines; markers also distinguish policies.
_COLOURS: Final = ("#D55E00", "#0072B2", "#E69F00", "#56B4E9", "#009E73", "#666666")
_MARKERS: Final = ("*", "D", "o", "s", "^", "P")
_OURS_SHOWN: Final = "laar"


def write_figures(results: Results, folder: Path) -> None:
    """success.png and improvement.png."""
    (folder / "success.png").write_bytes(png_of(_success(results)))
    (folder / "improvement.png").write_bytes(png_of(_improvement(results)))


def _success(results: Results) -> Figure:
    """Figure 3: share right against mean time spent, one point for each attempt permitted."""
    figure = Figure(figsize=(3.4 * len(LENGTHS_TOKENS), 4.6), dpi=110, layout="constrained")
    for axes, length in zip(figure.subplots(1, len(LENGTHS_TOKENS), sharey=True), LENGTHS_TOKENS, strict=True):
        for policy, colour, marker in zip(POLICIES, _COLOURS, _MARKERS, strict=True):
            asked = [one for one in results.of(policy) if one.length_tokens == length]
            points = [_after(asked, attempts) for attempts in range(1, MAX_ATTEMPTS + 1)]
            times, shares = zip(*points, strict=True)
            axes.plot(times, shares, color=colour, marker=marker, markersize=6, linewidth=1.2, label=policy, alpha=0.9)
        axes.set_title(f"{length:,} tokens", fontsize=11)
        axes.set(xlabel="mean time spent, ms", ylim=(-0.03, 1.03))
        axes.set_xlim(left=0)
        tidy(axes)
    figure.axes[0].set_ylabel("share of questions answered rightly")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(POLICIES), frameon=False, fontsize=10)
    return figure


def _after(asked: Sequence[Asked], attempts: int) -> tuple[float, float]:
    """Mean time and share right with at most `attempts` attempts."""
    time_ms = fmean(sum(one.ms for one in question.tries[:attempts]) for question in asked)
    return time_ms, fmean(question.right and len(question.tries) <= attempts for question in asked)


def _improvement(results: Results) -> Figure:
    """Figure 4: by how much the mean time is shorter than another policy's, for each script and length."""
    figure = Figure(figsize=(3.8 * len(BASELINES), 4.0), dpi=110, layout="constrained")
    width = 0.8 / len(words.LANGUAGES)
    for axes, baseline in zip(figure.subplots(1, len(BASELINES), sharey=True), BASELINES, strict=True):
        for index, language in enumerate(words.LANGUAGES):
            found = [compared(*_cell(results, baseline, language, length)) for length in LENGTHS_TOKENS]
            places = [place + (index - 1) * width for place in range(len(LENGTHS_TOKENS))]
            shares = [100 * one.share for one in found]
            arms = [[100 * (one.share - one.low) for one in found], [100 * (one.high - one.share) for one in found]]
            axes.bar(places, shares, width, yerr=arms, color=_COLOURS[index], label=language, error_kw={"lw": 0.9})
        axes.set_title(f"{_OURS_SHOWN} against {baseline}", fontsize=11)
        axes.set_xticks(range(len(LENGTHS_TOKENS)), [f"{length:,}" for length in LENGTHS_TOKENS])
        axes.set(xlabel="prompt length in tokens", ylim=(-100, 100))
        axes.axhline(0, color="#444444", linewidth=0.8)
        tidy(axes)
    figure.axes[0].set_ylabel("mean time to correct answer: % shorter")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(words.LANGUAGES), frameon=False, fontsize=10)
    return figure


def _cell(results: Results, baseline: str, language: str, length: int) -> tuple[list[Asked], list[Asked]]:
    def here(policy: str) -> list[Asked]:
        return [one for one in results.of(policy) if (one.language, one.length_tokens) == (language, length)]

    return here(_OURS_SHOWN), here(baseline)
