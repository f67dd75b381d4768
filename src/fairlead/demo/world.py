"""The simulated pool: three models on four engines, in the image of those that LAAR measured (section 3.1, figure 2).

The paper describes its curves in words and pictures, so the numbers here are ours and only their shape is the paper's:
accuracy falls with length and depends on the language; phi-3-mini is right most often and slowest; granite-3.1-2b is
fast and falls gently; swallow-8b is strong, best in Japanese, and collapses past 16K. No model is best everywhere.
The router never reads this module: it learns from answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS

# How much faster than the hardware they stand for the engines run, so that the demo takes a minute, not ten.
TIME_SCALE: Final = 10.0
ENGINES: Final = ("granite-3.1-2b", "granite-3.1-2b", "phi-3-mini", "swallow-8b")


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """Accuracy by language for 4K, 8K, 16K, 32K, 64K and 128K; time as on one data-centre GPU."""

    name: str
    accuracy: dict[str, tuple[float, ...]]
    prefill_ms_per_token: float
    decode_ms_per_token: float


MODELS: Final = (
    SimulatedModel(
        "granite-3.1-2b",
        {
            "en": (0.82, 0.76, 0.68, 0.58, 0.44, 0.30),
            "ja": (0.62, 0.55, 0.47, 0.38, 0.27, 0.18),
            "zh": (0.70, 0.62, 0.54, 0.45, 0.32, 0.20),
        },
        prefill_ms_per_token=0.04,
        decode_ms_per_token=8.0,
    ),
    SimulatedModel(
        "phi-3-mini",
        {
            "en": (0.96, 0.94, 0.90, 0.80, 0.64, 0.45),
            "ja": (0.80, 0.77, 0.70, 0.60, 0.44, 0.28),
            "zh": (0.85, 0.81, 0.75, 0.63, 0.47, 0.30),
        },
        prefill_ms_per_token=0.10,
        decode_ms_per_token=12.0,
    ),
    SimulatedModel(
        "swallow-8b",
        {
            "en": (0.92, 0.90, 0.84, 0.12, 0.03, 0.01),
            "ja": (0.97, 0.95, 0.91, 0.20, 0.04, 0.01),
            "zh": (0.90, 0.87, 0.80, 0.12, 0.03, 0.01),
        },
        prefill_ms_per_token=0.07,
        decode_ms_per_token=14.0,
    ),
)


def write_accuracy(path: Path, models: Sequence[SimulatedModel] = MODELS) -> None:
    """What the engines are told, in the form of a capability file."""
    document = {
        "task": "kv-lookup",
        "buckets": list(BUCKETS),
        "models": {model.name: {language: _row(model, language) for language in LANGUAGES} for model in models},
    }
    path.write_text(json.dumps(document), encoding="utf-8")


def engine_arguments(model: SimulatedModel, port: int, accuracy: Path) -> list[str]:
    """The command line of `fairlead` that serves `model`."""
    return [
        "engine",
        *("--model", model.name),
        *("--listen", f"127.0.0.1:{port}"),
        *("--accuracy", str(accuracy)),
        *("--prefill-ms-per-token", str(model.prefill_ms_per_token)),
        *("--decode-ms-per-token", str(model.decode_ms_per_token)),
        *("--time-scale", str(TIME_SCALE)),
    ]


def _row(model: SimulatedModel, language: str) -> list[float]:
    """Every bucket; a language that the model was not described in is as its English."""
    row = model.accuracy.get(language, model.accuracy["en"])
    return [*row, *[row[-1]] * (len(BUCKETS) - len(row))]
