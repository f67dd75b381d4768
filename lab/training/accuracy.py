"""Held-out accuracy of the tiny models by language and length: `python -m lab.training.accuracy FOLDER`.

Weights are as served (rounded to bfloat16), questions as asked in use: one about each dictionary, none seen in
training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from lab import words
from lab.training.batches import Batches
from lab.training.model import TinyLlama
from lab.training.recipes import RECIPES, Recipe
from lab.training.weights import read

LENGTHS_TOKENS = (64, 128, 256, 512, 1024)
_DICTIONARIES = 200
_AT_ONCE = 40
_SEED = 1_000_000  # no recipe's


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    table = {recipe.name: accuracy(recipe, folder) for recipe in RECIPES}
    document = {"lengths_tokens": LENGTHS_TOKENS, "questions_in_each_cell": _DICTIONARIES, "accuracy": table}
    (folder / "accuracy.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def accuracy(recipe: Recipe, folder: Path) -> dict[str, list[float]]:
    """Share of right answers by language, one for each of LENGTHS_TOKENS. Prints each row."""
    model = read(recipe, folder / recipe.name)
    rows = {}
    for language in words.LANGUAGES:
        rows[language] = [_share(model, language, length) for length in LENGTHS_TOKENS]
        print(f"{recipe.name:8} {language}  " + "  ".join(f"{share:6.1%}" for share in rows[language]), flush=True)
    return rows


def _share(model: TinyLlama, language: str, length_tokens: int) -> float:
    batches = Batches(_SEED)
    mix = tuple(float(language == other) for other in words.LANGUAGES)
    right = 0
    for _ in range(_DICTIONARIES // _AT_ONCE):
        batch = batches.make(_AT_ONCE, words.pairs_in(length_tokens), 1, mix)
        tokens, ends = torch.from_numpy(batch.tokens), torch.from_numpy(batch.questions)
        with torch.inference_mode():
            said = model(tokens[:, : int(ends[0]) + 1], ends).argmax(dim=-1)
        right += int((said == tokens[:, ends + 1]).sum())
    return right / _DICTIONARIES


if __name__ == "__main__":
    main()
