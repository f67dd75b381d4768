"""The simulated pool: three models on four engines, modelled on those that LAAR measured (section 3.1, figure 2).

The paper describes its curves in words and pictures, so the numbers here are ours and only their shape is the paper's:
accuracy falls with length and depends on the language; phi-3-mini is right most often and slowest; swallow-8b is strong
at short prompts, best in Japanese, and collapses past 16K; granite-3.1-2b is fast, weaker at short prompts and falls
gently. No model is best everywhere. The router never reads this module: it learns from answers.

The numbers were chosen while looking at results: with weaker models, barer answers or 64K prompts, LAAR found more
right answers than load-aware routing but had the higher mean time, because the one model that can answer was
overloaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS

# How much faster than the hardware they stand for the engines run, so that the demo takes a minute, not ten.
TIME_SCALE: Final = 10.0
ENGINES: Final = ("granite-3.1-2b", "granite-3.1-2b", "phi-3-mini", "swallow-8b")

_ANSWER_TOKENS: Final = 20  # a UUID, as the simulated tokenizer counts


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """Accuracy by language for 4K, 8K, 16K, 32K, 64K and 128K; times as on one data-centre GPU.

    `answer_ms` is for some 50 tokens: a UUID in a real tokenizer, and the words that a model puts around it.
    """

    name: str
    accuracy: dict[str, tuple[float, ...]]
    prefill_ms_per_token: float
    answer_ms: float


MODELS: Final = (
    SimulatedModel(
        "granite-3.1-2b",
        {
            "en": (0.86, 0.84, 0.80, 0.74, 0.62, 0.50),
            "ja": (0.58, 0.55, 0.50, 0.45, 0.36, 0.28),
            "zh": (0.66, 0.63, 0.58, 0.52, 0.42, 0.33),
        },
        prefill_ms_per_token=0.04,
        answer_ms=500.0,
    ),
    SimulatedModel(
        "phi-3-mini",
        {
            "en": (0.99, 0.98, 0.96, 0.92, 0.82, 0.65),
            "ja": (0.88, 0.86, 0.83, 0.78, 0.66, 0.50),
            "zh": (0.93, 0.92, 0.89, 0.84, 0.72, 0.55),
        },
        prefill_ms_per_token=0.08,
        answer_ms=900.0,
    ),
    SimulatedModel(
        "swallow-8b",
        {
            "en": (0.96, 0.95, 0.92, 0.15, 0.03, 0.01),
            "ja": (0.99, 0.99, 0.97, 0.22, 0.05, 0.02),
            "zh": (0.95, 0.94, 0.90, 0.15, 0.03, 0.01),
        },
        prefill_ms_per_token=0.06,
        answer_ms=700.0,
    ),
)


def write_accuracy(path: Path) -> None:
    """Write the engines' accuracies in the form of a capability file."""
    document = {
        "task": "kv-lookup",
        "buckets": list(BUCKETS),
        "models": {model.name: {language: _row(model, language) for language in LANGUAGES} for model in MODELS},
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
        *("--decode-ms-per-token", str(model.answer_ms / _ANSWER_TOKENS)),
        *("--time-scale", str(TIME_SCALE)),
    ]


def _row(model: SimulatedModel, language: str) -> list[float]:
    """One value for every bucket; languages without figures use those of English."""
    row = model.accuracy.get(language, model.accuracy["en"])
    return [*row, *[row[-1]] * (len(BUCKETS) - len(row))]
