"""Train one tiny model from scratch: `python -m lab.training.train NAME FOLDER`. Same seed and machine, same weights.

Recall needs two steps of attention that are of no use without each other, so plain training sits on a plateau for
minutes. For its first steps the first heads of two layers are therefore told where to look (guided attention, Tachibana
and others, 2017): a value and a question at their key, then a question at the value whose key is its own.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from lab import words
from lab.training.batches import Batch, Batches
from lab.training.model import HEAD_DIM, NORM_EPSILON, ROPE_THETA, TinyLlama
from lab.training.recipes import RECIPES, Recipe
from lab.training.tokenizer import write_tokenizer

MAX_MODEL_LEN = 2048
_TOKENS_A_STEP = 8192
_MOST_ROWS = 48
_GUIDED_STEPS = 250
_WARM_UP_STEPS = 50
_LEARNING_RATE = 4e-3  # at width 64; wider models take less
_LONGER_BELOW = 0.25  # nats: then training prompts become twice as long
_SMOOTHING = 0.95
_REPORT_EVERY = 50


def main() -> None:
    recipe = next(recipe for recipe in RECIPES if recipe.name == sys.argv[1])
    folder = Path(sys.argv[2]) / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    model = train(recipe)
    write(model, recipe, folder)
    print(f"{recipe.name}: written to {folder}")


def train(recipe: Recipe) -> TinyLlama:
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)  # sums in one order, so that a seed decides
    rng = np.random.default_rng(recipe.seed)
    batches = Batches(recipe.seed)
    model = TinyLlama(len(words.vocabulary()), recipe.width, recipe.layers, MAX_MODEL_LEN)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    longest, pairs_now, smoothed, started_s = words.pairs_in(recipe.longest_tokens), 4, 1.0, time.monotonic()
    for step in range(recipe.steps):
        batch = _batch(batches, rng, pairs_now, recipe.mix)
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(recipe, step)
        loss, answers = _loss(model, batch, guided=step < _GUIDED_STEPS)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smoothed = _SMOOTHING * smoothed + (1 - _SMOOTHING) * answers
        if step % _REPORT_EVERY == 0 or step == recipe.steps - 1:
            took_s = time.monotonic() - started_s
            print(f"{recipe.name}: step {step}, {pairs_now} pairs, loss {smoothed:.3f}, {took_s:.0f} s", flush=True)
        if smoothed < _LONGER_BELOW and pairs_now < longest:
            pairs_now, smoothed = min(longest, 2 * pairs_now), 1.0
    return model


def _batch(batches: Batches, rng: np.random.Generator, pairs_now: int, mix: tuple[float, float, float]) -> Batch:
    """Half of all batches are as long as training has come, the others of any length up to that."""
    pairs = pairs_now if rng.random() < 0.5 else int(2 ** rng.uniform(1, math.log2(pairs_now)))
    questions = min(max(4, pairs), 32)
    rows = max(2, min(_MOST_ROWS, _TOKENS_A_STEP // (words.TOKENS_PER_PAIR * pairs + 5 * questions)))
    return batches.make(rows, pairs, questions, mix)


def _learning_rate(recipe: Recipe, step: int) -> float:
    most = _LEARNING_RATE * math.sqrt(64 / recipe.width)
    return most * min(1.0, (step + 1) / _WARM_UP_STEPS) * (0.5 + 0.5 * math.cos(math.pi * step / recipe.steps))


def _loss(model: TinyLlama, batch: Batch, *, guided: bool) -> tuple[Tensor, float]:
    """What to descend, and the loss of the answers alone (nats)."""
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


def write(model: TinyLlama, recipe: Recipe, folder: Path) -> None:
    """The files that an engine loads: weights in bfloat16, configuration, tokenizer."""
    weights = {f"model.{name}": weight.to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(words.vocabulary()),
        "hidden_size": recipe.width,
        "intermediate_size": 2 * recipe.width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.width // HEAD_DIM,
        "num_key_value_heads": recipe.width // HEAD_DIM,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPSILON,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
        "max_position_embeddings": MAX_MODEL_LEN,
        "tie_word_embeddings": True,
        "bos_token_id": words.vocabulary().index(words.BOS),
        "eos_token_id": words.vocabulary().index(words.EOS),
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(folder)


if __name__ == "__main__":
    main()
