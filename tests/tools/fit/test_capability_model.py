"""Fitting one model: what it recovers, how it extrapolates, and what it does with too little."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.tools.fit import fit_model
from fairlead.tools.fit.quality import Predictions
from tests.tools.fit.world import draw, fitted_at, logistic_truth

TRUTH = logistic_truth({"en": 4.0, "ja": 3.0, "zh": 2.0}, slope=0.9)


def test_a_known_logistic_model_is_recovered_within_the_error_of_its_sample() -> None:
    attempts = 400
    fitted = fit_model(draw(TRUTH, attempts), seed=0, folds=5)
    for (language, bucket), truth in TRUTH.items():
        # Four standard errors of a cell's own observed rate: even a fit that pooled nothing across cells would pass
        # all 21 with probability 0.999. The floor is for rates near 0 and 1, where the L2 pull outweighs the noise.
        tolerance = max(4 * math.sqrt(truth * (1 - truth) / attempts), 0.03)
        assert fitted_at(fitted, language, bucket) == pytest.approx(truth, abs=tolerance)


def test_pooling_over_cells_is_closer_to_the_truth_than_observed_rates() -> None:
    pooled_error = rate_error = 0.0
    for seed in range(5):
        fitted = fit_model(draw(TRUTH, 30, seed), seed=0, folds=5)
        for (language, bucket), truth in TRUTH.items():
            at = LANGUAGES.index(language), BUCKETS.index(bucket)
            pooled_error += (fitted.probability[at] - truth) ** 2
            rate_error += (fitted.right[at] / 30 - truth) ** 2
    assert pooled_error < rate_error


def test_predictions_are_calibrated_on_attempts_that_the_fit_never_saw() -> None:
    fitted = fit_model(draw(TRUTH, 200, seed=1), seed=0, folds=5)
    later = draw(TRUTH, 2000, seed=2)
    count = np.bincount(later.cell, minlength=fitted.probability.size).astype(float)
    right = np.bincount(later.cell[later.right], minlength=fitted.probability.size).astype(float)
    # The 4200 fitted attempts leave a tenth of the range a standard error of at most 0.024, the 42000 later ones 0.008.
    assert Predictions(fitted.probability.ravel(), right, count - right).calibration_error() < 0.03


def test_a_ranking_of_models_that_changes_with_length_and_language_is_kept() -> None:
    buckets = ("4K", "8K", "16K", "32K", "64K")
    collapses = {("en", b): p for b, p in zip(buckets, (0.97, 0.95, 0.9, 0.15, 0.02), strict=True)}
    collapses |= {("ja", b): p for b, p in zip(buckets, (0.98, 0.97, 0.95, 0.2, 0.02), strict=True)}
    steady = {("en", b): p for b, p in zip(buckets, (0.99, 0.98, 0.97, 0.85, 0.6), strict=True)}
    steady |= {("ja", b): p for b, p in zip(buckets, (0.85, 0.8, 0.75, 0.6, 0.4), strict=True)}
    swallow, phi = (fit_model(draw(truth, 50, seed=3), seed=0, folds=5) for truth in (collapses, steady))
    for language, bucket, best, worst in (
        ("en", "32K", phi, swallow),
        ("ja", "16K", swallow, phi),
        ("ja", "32K", phi, swallow),
        ("ja", "64K", phi, swallow),
    ):
        assert fitted_at(best, language, bucket) > fitted_at(worst, language, bucket)


def test_after_a_collapse_no_longer_prompt_is_promised_a_recovery() -> None:
    buckets = ("4K", "8K", "16K", "32K")
    truth = {
        (language, b): p for language in ("en", "zh") for b, p in zip(buckets, (0.95, 0.95, 0.95, 0.1), strict=True)
    }
    fitted = fit_model(draw(truth, 200), seed=0, folds=5)
    last_seen = fitted_at(fitted, "en", "32K")
    assert last_seen == pytest.approx(0.1, abs=0.08)
    assert (
        last_seen
        >= fitted_at(fitted, "en", "64K")
        >= fitted_at(fitted, "en", "128K")
        >= fitted_at(fitted, "en", "beyond")
    )


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.floats(0.05, 0.95), min_size=4, max_size=4),
    st.integers(0, 3),
    st.integers(0, 1000),
)
def test_outside_the_lengths_seen_longer_is_never_better(rates: list[float], first: int, seed: int) -> None:
    seen = BUCKETS[first : first + 4]
    fitted = fit_model(draw({("en", b): p for b, p in zip(seen, rates, strict=True)}, 20, seed), seed=0, folds=3)
    for language in ("en", "ko"):  # seen and never seen
        row = fitted.probability[LANGUAGES.index(language)]
        assert list(row[: first + 1]) == sorted(row[: first + 1], reverse=True)
        assert list(row[first + 3 :]) == sorted(row[first + 3 :], reverse=True)


def test_a_language_never_seen_lies_between_those_that_were() -> None:
    truth = logistic_truth({"en": 4.0, "zh": 1.0}, slope=0.5)
    fitted = fit_model(draw(truth, 200), seed=0, folds=5)
    for bucket in BUCKETS:
        assert fitted_at(fitted, "zh", bucket) < fitted_at(fitted, "ko", bucket) < fitted_at(fitted, "en", bucket)
        assert fitted_at(fitted, "ko", bucket) == fitted_at(fitted, "other", bucket)


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 61 / 62), (0.0, 1 / 62)])
def test_a_model_with_one_outcome_only_gets_a_smoothed_rate_that_says_so(rate: float, expected: float) -> None:
    fitted = fit_model(draw({("en", "4K"): rate, ("ja", "8K"): rate}, 30), seed=0, folds=5)
    assert fitted.strength is None
    assert fitted.rate_because is not None
    assert "too few" in fitted.rate_because
    assert np.unique(fitted.probability) == pytest.approx([expected])


def test_a_single_attempt_is_fitted() -> None:
    fitted = fit_model(draw({("en", "4K"): 1.0}, 1), seed=0, folds=5)
    assert np.unique(fitted.probability) == pytest.approx([2 / 3])
    assert fitted.quality.rows == 1


def test_quality_is_better_than_the_overall_rate_where_length_matters() -> None:
    quality = fit_model(draw(TRUTH, 100), seed=0, folds=5).quality
    assert quality.rows == 100 * len(TRUTH)
    assert quality.log_loss < quality.base_log_loss
    assert quality.brier < quality.base_brier


def test_quality_is_no_better_than_the_overall_rate_where_nothing_matters() -> None:
    quality = fit_model(draw(dict.fromkeys(TRUTH, 0.5), 30), seed=0, folds=5).quality
    assert quality.base_log_loss == pytest.approx(math.log(2), abs=0.01)
    assert quality.log_loss > quality.base_log_loss - 0.005  # held out: chance must not look like skill


def test_another_seed_changes_the_folds_and_not_the_kind_of_result() -> None:
    attempts = draw(TRUTH, 50)
    first, second = (fit_model(attempts, seed=seed, folds=5) for seed in (0, 1))
    assert first.quality != second.quality
    assert first.quality.log_loss == pytest.approx(second.quality.log_loss, abs=0.02)
