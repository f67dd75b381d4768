"""Logistic regression on coarse features: the probability of a right answer for each language and length bucket.

Features are so coarse that all attempts of a cell (one language, one bucket) are alike. So a fit works on counts of
right and wrong answers by cell, and costs the same for a hundred attempts and for ten million.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.tools.fit.quality import FloatArray, log_loss_sum

CELLS = len(LANGUAGES) * len(BUCKETS)
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # scikit-learn's C: the larger, the less the weights are shrunk


_LANGUAGE = np.repeat(np.arange(len(LANGUAGES)), len(BUCKETS))
_BUCKET = np.tile(np.arange(len(BUCKETS)), len(LANGUAGES))
_CELL = np.arange(CELLS)


def _features(bucket: NDArray[np.int64], cell: NDArray[np.int64]) -> FloatArray:
    """One row for each cell, with the indicators of `bucket` and `cell`.

    Buckets double in length, so the index is log2 of it. Centred, its range is far wider than an indicator's: L2
    shrinks the slope least and the weight of a single cell most, so rarely observed cells follow the trend.
    """
    length = _BUCKET - (len(BUCKETS) - 1) / 2
    return np.hstack(
        [np.eye(len(LANGUAGES))[_LANGUAGE], length[:, None], np.eye(len(BUCKETS))[bucket], np.eye(CELLS)[cell]]
    )


_DESIGN = _features(_BUCKET, _CELL)


def fit_cells(right: FloatArray, wrong: FloatArray, strength: float) -> FloatArray:
    """The fitted probability of every cell, seen or not. Both outcomes must occur."""
    features = np.vstack([_DESIGN[right > 0], _DESIGN[wrong > 0]])
    outcome = np.repeat([1, 0], [int((right > 0).sum()), int((wrong > 0).sum())])
    attempts = np.concatenate([right[right > 0], wrong[wrong > 0]])
    # Newton's method: exact in a few steps at this size, and the same on every run.
    regression = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-6, max_iter=200)
    used = features.any(axis=0)  # an indicator that no attempt has would get the weight 0
    regression.fit(features[:, used], outcome, sample_weight=attempts)
    seen = _Seen(right + wrong > 0)
    wanted = _features(seen.nearest_bucket(), seen.nearest_cell())[:, used]
    fitted = cast(FloatArray, regression.predict_proba(wanted)[:, 1])
    return seen.falling_outside(fitted)


def best_strength(right: FloatArray, wrong: FloatArray) -> float:
    """The strength with the least log loss on held-out folds. Both arrays are by fold and cell."""

    def held_out_loss(strength: float) -> float:
        return sum(
            log_loss_sum(fit_cells(*without(fold, right, wrong), strength), right[fold], wrong[fold])
            for fold in range(len(right))
        )

    return min(STRENGTHS, key=held_out_loss)


def without(fold: int, right: FloatArray, wrong: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Counts by cell over every fold but one."""
    return right.sum(axis=0) - right[fold], wrong.sum(axis=0) - wrong[fold]


class _Seen:
    """Which lengths were seen in each language, and what to expect of the others.

    A length outside them takes the weights of the nearest that was seen and follows the slope from there. The slope
    alone would predict a recovery after a model's collapse, because the collapse is in the weights of cells.
    """

    def __init__(self, seen: NDArray[np.bool_]) -> None:
        table = seen.reshape(len(LANGUAGES), len(BUCKETS))
        self._anywhere = np.flatnonzero(table.any(axis=0))
        self._lengths = [np.flatnonzero(row) if row.any() else self._anywhere for row in table]

    def nearest_bucket(self) -> NDArray[np.int64]:
        return np.clip(_BUCKET, self._anywhere[0], self._anywhere[-1])

    def nearest_cell(self) -> NDArray[np.int64]:
        near: NDArray[np.int64] = np.array(
            [np.clip(np.arange(len(BUCKETS)), lengths[0], lengths[-1]) for lengths in self._lengths]
        )
        return _LANGUAGE * len(BUCKETS) + near.ravel()

    def falling_outside(self, fitted: FloatArray) -> FloatArray:
        """Limit extrapolation: beyond the longest seen it is never better, below the shortest never worse."""
        table = fitted.reshape(len(LANGUAGES), len(BUCKETS)).copy()
        for row, lengths in zip(table, self._lengths, strict=True):
            shortest, longest = lengths[0], lengths[-1]
            row[longest:] = np.minimum.accumulate(row[longest:])
            row[: shortest + 1] = np.maximum.accumulate(row[shortest::-1])[::-1]
        return table.ravel()
