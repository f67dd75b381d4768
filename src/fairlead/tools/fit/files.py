"""Capability files: the JSON of one task family, as `fairlead.core.capability` reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import FIRST_BUCKET_TOKENS, bucket_names
from fairlead.files import replace_file
from fairlead.tools.fit.capability_model import FittedModel
from fairlead.tools.fit.quality import Predictions

_DECIMALS = 4  # finer than any table of attempts can show, and hides rounding differences between machines
_FLAT_LIST = re.compile(r"\[\n([^\[\]{}]+)\n\s*\]")  # no text can match: a line break inside one is escaped


def write_family(path: Path, models: Sequence[FittedModel], seed: int, folds: int) -> None:
    """Write the file of the family that all `models` belong to."""
    held_out = Predictions.joined([fitted.held_out for fitted in models])
    first = models[0].first_bucket_tokens
    document = {
        "task": models[0].task,
        **({} if first == FIRST_BUCKET_TOKENS else {"first_bucket_tokens": first}),
        "buckets": list(bucket_names(first)),
        "models": {fitted.model: _table(fitted) for fitted in models},
        "fit": {
            "seed": seed,
            "folds": folds,
            "calibration_error": _rounded(held_out.calibration_error()),
            "models": {fitted.model: _account(fitted) for fitted in models},
        },
    }
    text = json.dumps(document, indent=2, ensure_ascii=False)
    text = _FLAT_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    replace_file(path, f"{text}\n".encode())


def _table(fitted: FittedModel) -> dict[str, list[float]]:
    return {
        language: [_rounded(probability) for probability in row]
        for language, row in zip(LANGUAGES, fitted.probability.tolist(), strict=True)
    }


def _account(fitted: FittedModel) -> dict[str, Any]:
    quality = fitted.quality
    how: dict[str, Any] = {"method": "logistic regression", "strength": fitted.strength}
    if fitted.rate_because is not None:
        how = {"method": "smoothed rate", "because": fitted.rate_because}
    speed = fitted.prefill_ms_per_token
    return {
        **how,
        "attempts": quality.rows,
        "right": int(fitted.right.sum()),
        "log_loss": _rounded(quality.log_loss),
        "base_log_loss": _rounded(quality.base_log_loss),
        "brier": _rounded(quality.brier),
        "base_brier": _rounded(quality.base_brier),
        "calibration_error": _rounded(quality.calibration_error),
        **({} if speed is None else {"prefill_ms_per_token": float(f"{speed:.4g}")}),
    }


def _rounded(number: float) -> float:
    return round(number, _DECIMALS)
