"""Drift detection: whether traffic has moved away from what a plan was made for, beyond chance and short bursts.

Each quantity has a band around its planned value: outside the wide one it counts as moved, inside the narrow one as
back, and between the two it stays what it was. Only a quantity that stays moved for some windows in a row triggers a
new plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.cascade.rows import ProfileRow

_STANDARD_ERRORS = 3.0  # allowed to chance, of a sample's mean


@dataclass(frozen=True, slots=True)
class Quantity:
    mean: float
    standard_error: float = 0.0


Traffic = Mapping[str, Quantity]  # by the name of the quantity

RATE = "requests a second"


def traffic(rows: Sequence[ProfileRow], models: Sequence[str], requests: int, seconds: float) -> dict[str, Quantity]:
    """The quantities of a window: `requests` counted in `seconds`, and the rows of all models for a sample of them."""
    found = {RATE: Quantity(requests / seconds, requests**0.5 / seconds)}
    prompts = {row.request: float(row.prompt_tokens) for row in rows}
    if prompts:
        found["prompt tokens"] = _measured(list(prompts.values()))
    for model in models:
        own = [row for row in rows if row.model == model]
        if own:
            found[f"answer tokens of {model}"] = _measured([float(row.output_tokens) for row in own])
            found[f"score of {model}"] = _measured([row.score for row in own])
    return found


def _measured(values: Sequence[float]) -> Quantity:
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("inf")
    return Quantity(float(np.mean(values)), error)


@dataclass(slots=True)
class DriftDetector:
    """Give it each window's traffic; it returns the quantities that have drifted."""

    planned: Traffic
    wide: float = 0.3  # relative to the planned value
    narrow: float = 0.15
    windows: int = 3
    _moved_for: dict[str, int] = field(default_factory=dict)

    @property
    def moved_windows(self) -> int:
        """For how many windows the quantity that moved first has been outside."""
        return max(self._moved_for.values(), default=0)

    def seen(self, now: Traffic) -> list[str]:
        """Descriptions of the quantities that have been outside for `windows` windows."""
        for name, planned in self.planned.items():
            if name not in now:
                continue  # nothing was sampled: nothing is known
            chance = _STANDARD_ERRORS * (now[name].standard_error ** 2 + planned.standard_error**2) ** 0.5
            away = abs(now[name].mean - planned.mean)
            if away > self.wide * abs(planned.mean) + chance:
                self._moved_for[name] = self._moved_for.get(name, 0) + 1
            elif away <= self.narrow * abs(planned.mean) + chance:
                self._moved_for.pop(name, None)
        return [
            f"{name}: {self.planned[name].mean:.4g} -> {now[name].mean:.4g}"
            for name, count in self._moved_for.items()
            if count >= self.windows and name in now
        ]
