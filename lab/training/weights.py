"""A tiny model's folder: weights in bfloat16, configuration and tokenizer, as an engine loads them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lab import words
from lab.training.model import HEAD_DIM, NORM_EPSILON, ROPE_THETA, TinyLlama
from lab.training.recipes import Recipe
from lab.training.tokenizer import write_tokenizer

MAX_MODEL_LEN = 2048
_PREFIX = "model."  # of Hugging Face's names


def read(recipe: Recipe, folder: Path) -> TinyLlama:
    """The model that `write` left in `folder`."""
    model = TinyLlama(len(words.vocabulary()), recipe.width, recipe.layers, MAX_MODEL_LEN)
    saved = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix(_PREFIX): weight.float() for name, weight in saved.items()})
    return model


def write(model: TinyLlama, recipe: Recipe, folder: Path) -> None:
    weights = {
        f"{_PREFIX}{name}": weight.to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()
    }
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
