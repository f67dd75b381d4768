"""The tiny models: how wide each is, how long its training prompts were and in which languages they were.

They are meant to differ as real models do (LAAR, section 3.1): none is best everywhere, larger is not always better,
and past the length of its training a model fails. How accurate they are is not said here: `accuracy.json` was measured.
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


RECIPES: Final = (
    Recipe("wren", 64, 2, 256, (0.59, 0.40, 0.01), steps=320, seed=11),
    Recipe("swift", 96, 2, 128, (0.09, 0.90, 0.01), steps=260, seed=12),
    Recipe("heron", 128, 2, 1024, (0.98, 0.01, 0.01), steps=420, seed=13),
    Recipe("stork", 160, 4, 512, (0.01, 0.01, 0.98), steps=330, seed=14),
)
