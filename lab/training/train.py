"""Train one tiny model: `python -m lab.training.train NAME FOLDER`. Same seed and machine, same weights.

Recall needs two steps of attention that are useless without each other, so plain training stays on a plateau for
minutes. So for the first steps, the first heads of two layers are guided in where to look (guided attention, Tachibana
and others, 2017): a value and a question at their key, then a question at the value whose key is its own.

A model that is grown from another starts with the other's weights, learns its own mix of languages at that depth, where
a step is cheap, and is then made deeper and trained further.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lab import words
from lab.training.batches import Batch, Batches
from lab.training.growth import deepened
from lab.training.model import TinyLlama
from lab.training.recipes import Recipe, recipe_of
from lab.training.weights import MAX_MODEL_LEN, read, write

_TOKENS_A_STEP = 8192
_MOST_ROWS = 48
_GUIDED_STEPS = 250
_WARM_UP_STEPS = 50
_LEARNING_RATE = 4e-3  # at width 64; wider models take less
_SHALLOW_LEARNING_RATE = 2e-3  # of a grown model, before it is deepened
_DEEP_LEARNING_RATE = 2e-4  # and after: a higher rate would undo what the shallow model learned
_FIRST_PAIRS = 4  # for an untrained model
_LONGER_BELOW = 0.25  # nats: then training prompts become twice as long
_SMOOTHING = 0.95
_REPORT_EVERY = 50


def main() -> None:
    recipe, models = recipe_of(sys.argv[1]), Path(sys.argv[2])
    folder = models / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)  # sums in a fixed order, so that a seed determines the result
    training = Training(recipe)
    if recipe.grown_from is None:
        model = TinyLlama(len(words.vocabulary()), recipe.width, recipe.layers, MAX_MODEL_LEN)
        training.run(model, recipe.steps, _LEARNING_RATE * math.sqrt(64 / recipe.width), _FIRST_PAIRS, _GUIDED_STEPS)
    else:
        seedling = recipe_of(recipe.grown_from)
        model = read(seedling, models / seedling.name)
        longest = words.pairs_in(recipe.longest_tokens)
        training.run(model, recipe.shallow_steps, _SHALLOW_LEARNING_RATE, longest, 0)
        model = deepened(model, recipe.layers)
        training.run(model, recipe.steps, _DEEP_LEARNING_RATE, longest, 0)
    write(model, recipe, folder)
    print(f"{recipe.name}: written to {folder}")


class Training:
    """Trains on batches of one recipe; its seed determines everything."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._rng = np.random.default_rng(recipe.seed)
        self._batches = Batches(recipe.seed)

    def run(self, model: TinyLlama, steps: int, learning_rate: float, first_pairs: int, guided_steps: int) -> None:
        recipe = self._recipe
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=True)
        longest, pairs_now, smoothed = words.pairs_in(recipe.longest_tokens), first_pairs, 1.0
        started_s = time.monotonic()
        for step in range(steps):
            batch = _batch(self._batches, self._rng, pairs_now, recipe.mix)
            for group in optimizer.param_groups:
                group["lr"] = _learning_rate(learning_rate, step, steps)
            loss, answers = _loss(model, batch, guided=step < guided_steps)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            smoothed = _SMOOTHING * smoothed + (1 - _SMOOTHING) * answers
            if step % _REPORT_EVERY == 0 or step == steps - 1:
                done = f"{len(model.layers)} layers, step {step}, {pairs_now} pairs, loss {smoothed:.3f}"
                print(f"{recipe.name}: {done}, {time.monotonic() - started_s:.0f} s", flush=True)
            if smoothed < _LONGER_BELOW and pairs_now < longest:
                pairs_now, smoothed = min(longest, 2 * pairs_now), 1.0


def _batch(batches: Batches, rng: np.random.Generator, pairs_now: int, mix: tuple[float, float, float]) -> Batch:
    """A batch; half of all have the longest length reached so far, the others any length up to that."""
    pairs = pairs_now if rng.random() < 0.5 else int(2 ** rng.uniform(1, math.log2(pairs_now)))
    questions = min(max(4, pairs), 32)
    rows = max(2, min(_MOST_ROWS, _TOKENS_A_STEP // (words.TOKENS_PER_PAIR * pairs + 5 * questions)))
    return batches.make(rows, pairs, questions, mix)


def _learning_rate(most: float, step: int, steps: int) -> float:
    warm_up = min(_WARM_UP_STEPS, steps // 4)
    return most * min(1.0, (step + 1) / warm_up) * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def _loss(model: TinyLlama, batch: Batch, *, guided: bool) -> tuple[Tensor, float]:
    """The training loss, and the loss of the answers alone (nats)."""
    tokens, ends = torch.from_numpy(batch.tokens), torch.from_numpy(batch.questions)
    looks: list[Tensor] | None = [] if guided else None
    places = torch.cat((ends, ends[:1] + 1))  # after the first answer: that </s> follows
    logits = model(tokens[:, :-1], places, looks)
    wrong = functional.cross_entropy(logits.flatten(0, 1), tokens[:, places + 1].flatten(), reduction="none")
    answers = wrong.view(len(tokens), -1)[:, :-1].mean()
    loss = wrong.mean()
    if looks is not None:
        values, sought = torch.from_numpy(batch.values), torch.from_numpy(batch.sought)
        at_own_key = looks[0][:, values, values - 2].mean() + looks[0][:, ends, ends - 1].mean()
        at_value = torch.gather(looks[1][:, ends], 2, sought[:, :, None]).mean()
        loss = loss - at_own_key - at_value
    return loss, answers.item()


if __name__ == "__main__":
    main()
