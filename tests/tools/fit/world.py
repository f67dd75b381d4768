"""Attempts drawn from known probabilities, and where a language and bucket stand in a fitted table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.tools.fit import FittedModel, ModelAttempts

Truth = Mapping[tuple[str, str], float]


def draw(truth: Truth, attempts_per_cell: int, seed: int = 0, model: str = "m") -> ModelAttempts:
    """`attempts_per_cell` attempts at each language and bucket of `truth`, each right with its probability."""
    random = np.random.default_rng(seed)
    cell = [LANGUAGES.index(language) * len(BUCKETS) + BUCKETS.index(bucket) for language, bucket in truth]
    cells = np.repeat(np.array(cell, dtype=np.int64), attempts_per_cell)
    right = random.random(len(cells)) < np.repeat(list(truth.values()), attempts_per_cell)
    return ModelAttempts("kv-lookup", model, cells, right, prefill_ms_per_token=None)


def logistic_truth(languages: Mapping[str, float], slope: float) -> dict[tuple[str, str], float]:
    """A well-specified truth: log-odds that fall by `slope` with each doubling, from a start for each language."""
    return {
        (language, bucket): float(1 / (1 + np.exp(-(start - slope * index))))
        for language, start in languages.items()
        for index, bucket in enumerate(BUCKETS)
    }


def fitted_at(fitted: FittedModel, language: str, bucket: str) -> float:
    return float(fitted.probability[LANGUAGES.index(language), BUCKETS.index(bucket)])
