"""Capability files: what the sidecar reads is what was fitted, and a reader never sees half a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.core.capability import LEAST_SUCCESS_PROBABILITY, parse_capability_file
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.files import replace_file
from fairlead.tools.fit import fit_model, write_family
from tests.tools.fit.world import draw, logistic_truth

TRUTH = logistic_truth({"en": 3.0, "ja": 2.0}, slope=0.8)


def test_what_is_parsed_is_what_was_fitted(tmp_path: Path) -> None:
    family = [fit_model(draw(TRUTH, 20, seed, model), seed=0, folds=3) for seed, model in enumerate(("a", 'b"[ 1 ]'))]
    write_family(tmp_path / "kv-lookup.json", family, seed=0, folds=3)
    file = parse_capability_file((tmp_path / "kv-lookup.json").read_bytes())
    assert file.task == "kv-lookup"
    assert list(file.models) == ["a", 'b"[ 1 ]']
    for fitted in family:
        capability = file.of_model(fitted.model)
        for row, language in enumerate(LANGUAGES):
            for bucket in range(len(BUCKETS)):
                expected = max(LEAST_SUCCESS_PROBABILITY, fitted.probability[row, bucket])
                assert capability.success_probability(language, bucket) == pytest.approx(expected, abs=1e-4)


def test_the_same_attempts_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first.json", "second.json"):
        write_family(tmp_path / name, [fit_model(draw(TRUTH, 20), seed=7, folds=3)], seed=7, folds=3)
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()


def test_the_file_tells_how_each_model_was_fitted(tmp_path: Path) -> None:
    family = [
        fit_model(draw(TRUTH, 20, model="regressed"), seed=0, folds=3),
        fit_model(draw({("en", "4K"): 1.0}, 9, model="sure"), seed=0, folds=3),
    ]
    write_family(tmp_path / "kv.json", family, seed=0, folds=3)
    fit = json.loads((tmp_path / "kv.json").read_text())["fit"]
    assert (fit["seed"], fit["folds"]) == (0, 3)
    assert fit["models"]["regressed"]["method"] == "logistic regression"
    assert fit["models"]["regressed"]["attempts"] == 20 * len(TRUTH)
    assert fit["models"]["regressed"]["log_loss"] < fit["models"]["regressed"]["base_log_loss"]
    assert fit["models"]["sure"]["method"] == "smoothed rate"
    assert fit["models"]["sure"]["because"].startswith("9 right and 0 wrong answers are too few")


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "kv.json").mkdir()
    with pytest.raises(OSError, match=r"kv\.json"):
        replace_file(tmp_path / "kv.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["kv.json"]
