"""The tiny models: width, depth, and length and languages of the training prompts.

The first four are meant to differ as real models do (LAAR, section 3.1): none is best everywhere, larger is not always
better, and past the length of its training a model fails. `crane` is the large model of a cascade: good at all of it,
and slow. Their measured accuracy is in `accuracy.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    width: int
    layers: int
    longest_tokens: int  # of a training prompt
    mix: tuple[float, float, float]  # shares of English, Japanese and Chinese among the training prompts
    steps: int
    seed: int
    grown_from: str | None = None  # a model of the same width, which becomes this one's first weights
    shallow_steps: int = 0  # trained at that model's depth, before it is made deeper


RECIPES: Final = (
    Recipe("wren", 64, 2, 256, (0.59, 0.40, 0.01), steps=320, seed=11),
    Recipe("swift", 96, 2, 128, (0.09, 0.90, 0.01), steps=260, seed=12),
    Recipe("heron", 128, 2, 1024, (0.98, 0.01, 0.01), steps=420, seed=13),
    Recipe("stork", 160, 4, 512, (0.01, 0.01, 0.98), steps=330, seed=14),
    Recipe("crane", 128, 16, 1024, (0.4, 0.3, 0.3), steps=40, seed=15, grown_from="heron", shallow_steps=150),
)


def recipe_of(name: str) -> Recipe:
    return next(recipe for recipe in RECIPES if recipe.name == name)
