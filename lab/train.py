"""`make lab-models`: train every tiny model again in the lab's own environment, measure them and draw the picture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure

from fairlead.errors import UserError
from lab import environment, words
from lab.servers import MODELS
from lab.training.recipes import RECIPES

_ROOT = Path(__file__).parents[1]


def main() -> None:
    try:
        python = environment.python(environment.build())
    except UserError as error:
        sys.exit(f"error: {error}")
    for recipe in RECIPES:
        subprocess.run([python, "-m", "lab.training.train", recipe.name, str(MODELS)], cwd=_ROOT, check=True)
    subprocess.run([python, "-m", "lab.training.accuracy", str(MODELS)], cwd=_ROOT, check=True)
    draw()


def draw() -> None:
    """Draw accuracy.png next to accuracy.json: a panel for each script, a line for each model."""
    measured = json.loads((MODELS / "accuracy.json").read_bytes())
    lengths = measured["lengths_tokens"]
    figure = Figure(figsize=(11, 3.9), dpi=110, layout="constrained")
    for axes, language in zip(figure.subplots(1, len(words.LANGUAGES), sharey=True), words.LANGUAGES, strict=True):
        for recipe, marker in zip(RECIPES, "osD^v", strict=True):
            label = f"{recipe.name} ({recipe.width} wide, {recipe.layers} layers)"
            axes.plot(lengths, measured["accuracy"][recipe.name][language], marker=marker, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set(title=language, xlabel="prompt length in tokens", ylim=(-0.03, 1.03))
        axes.grid(color="#e6e6e6", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("share of answers that are right")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(MODELS / "accuracy.png")


if __name__ == "__main__":
    main()
