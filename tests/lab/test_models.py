"""The tiny models in the repository are those that their recipes tell of."""

from __future__ import annotations

import json

from lab import cascade
from lab.__main__ import NAMES, POOL
from lab.servers import MODELS
from lab.training.recipes import RECIPES


def test_every_recipe_has_its_model_and_its_accuracy() -> None:
    measured = json.loads((MODELS / "accuracy.json").read_bytes())["accuracy"]
    assert {recipe.name for recipe in RECIPES} == set(NAMES) == set(measured)
    for recipe in RECIPES:
        config = json.loads((MODELS / recipe.name / "config.json").read_bytes())
        assert (config["hidden_size"], config["num_hidden_layers"]) == (recipe.width, recipe.layers)


def test_the_cascades_large_model_is_several_times_the_small_one_and_right_where_that_fails() -> None:
    measured = json.loads((MODELS / "accuracy.json").read_bytes())["accuracy"]
    small, large = (measured[model][cascade.LANGUAGE] for model in (cascade.SMALL, cascade.LARGE))
    assert min(large) > 0.95
    assert min(small) < 0.5
    sizes = [(MODELS / model / "model.safetensors").stat().st_size for model in (cascade.SMALL, cascade.LARGE)]
    assert sizes[1] > 8 * sizes[0]


def test_the_large_model_is_no_part_of_the_pool_that_is_started_by_default() -> None:
    assert set(NAMES) - set(POOL) == {cascade.LARGE}
