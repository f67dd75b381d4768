"""The capability of one model at one task family: a regression, or a single rate if attempts are few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.tools.fit.attempts import ModelAttempts
from fairlead.tools.fit.logistic import CELLS, best_strength, fit_cells, without
from fairlead.tools.fit.quality import FloatArray, Predictions, Quality


@dataclass(frozen=True, slots=True)
class FittedModel:
    """What was fitted for one model, what it was fitted on and how good it is. Tables are by language and bucket."""

    task: str
    model: str
    probability: FloatArray
    right: FloatArray
    wrong: FloatArray
    strength: float | None  # L2 strength of the regression; None when `probability` is one smoothed rate everywhere
    rate_because: str | None  # why it is a rate
    held_out: Predictions
    quality: Quality
    prefill_ms_per_token: float | None
    first_bucket_tokens: int


def fit_model(attempts: ModelAttempts, seed: int, folds: int) -> FittedModel:
    """The same attempts, seed and folds give the same result.

    `folds` is at least 3: one to hold out, and two among which the strength is chosen.
    """
    fold_of = _stratified_folds(attempts.right, seed, folds)
    right = _count(attempts.cell[attempts.right], fold_of[attempts.right], folds)
    wrong = _count(attempts.cell[~attempts.right], fold_of[~attempts.right], folds)
    rate_because = _too_little(int(right.sum()), int(wrong.sum()), folds)
    all_right, all_wrong = right.sum(axis=0), wrong.sum(axis=0)
    base = _predictions([_rate(*without(fold, right, wrong)) for fold in range(folds)], right, wrong)
    strength = None
    if rate_because is None:
        strength = best_strength(right, wrong)
        probability = fit_cells(all_right, all_wrong, strength)
        held_out = _predictions(_nested_cross_validation(right, wrong), right, wrong)
    else:
        probability, held_out = _rate(all_right, all_wrong), base
    shape = (len(LANGUAGES), len(BUCKETS))
    return FittedModel(
        task=attempts.task,
        model=attempts.model,
        probability=probability.reshape(shape),
        right=all_right.reshape(shape),
        wrong=all_wrong.reshape(shape),
        strength=strength,
        rate_because=rate_because,
        held_out=held_out,
        quality=Quality.of(held_out, base),
        prefill_ms_per_token=attempts.prefill_ms_per_token,
        first_bucket_tokens=attempts.first_bucket_tokens,
    )


def _stratified_folds(right: NDArray[np.bool_], seed: int, folds: int) -> NDArray[np.int64]:
    """A fold for each attempt, so that right and wrong answers are spread evenly."""
    order = np.random.default_rng(seed).permutation(len(right))
    fold_of = np.empty(len(right), dtype=np.int64)
    fold_of[np.concatenate([order[right[order]], order[~right[order]]])] = np.arange(len(right)) % folds
    return fold_of


def _count(cell: NDArray[np.int64], fold_of: NDArray[np.int64], folds: int) -> FloatArray:
    """How many attempts there are in each fold and cell."""
    return np.bincount(fold_of * CELLS + cell, minlength=folds * CELLS).reshape(folds, CELLS).astype(np.float64)


def _too_little(right: int, wrong: int, folds: int) -> str | None:
    """Why no regression can be cross-validated, or None: every fold must hold both outcomes."""
    if min(right, wrong) >= folds:
        return None
    return f"{right} right and {wrong} wrong answers are too few for a regression, which needs {folds} of each"


def _rate(right: FloatArray, wrong: FloatArray) -> FloatArray:
    """Laplace's rule of succession everywhere: a model that was right ten times out of ten may still fail."""
    return np.full(CELLS, (right.sum() + 1) / (right.sum() + wrong.sum() + 2))


def _nested_cross_validation(right: FloatArray, wrong: FloatArray) -> list[FloatArray]:
    """For each fold, the fit on the others.

    The strength is chosen on those too, so no fold affects its own evaluation.
    """
    fitted = []
    for fold in range(len(right)):
        strength = best_strength(np.delete(right, fold, axis=0), np.delete(wrong, fold, axis=0))
        fitted.append(fit_cells(*without(fold, right, wrong), strength))
    return fitted


def _predictions(by_fold: list[FloatArray], right: FloatArray, wrong: FloatArray) -> Predictions:
    return Predictions(np.concatenate(by_fold), right.ravel(), wrong.ravel())
