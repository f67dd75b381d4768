"""The last traced request of each bucket of the duration histogram: from a slow bucket in Prometheus to its trace."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from fairlead.core.histogram import DURATION_SECONDS

_MOST_MODELS: Final = 256  # that have any; names of models come and go with the pool


class Traced(NamedTuple):
    trace_id: str  # hexadecimal
    duration_s: float
    ended_s: float  # Unix time


class Exemplars:
    """By model, by the place of the bucket in `DURATION_SECONDS`, whose length stands for what is above all."""

    def __init__(self) -> None:
        self.by_model: dict[str, dict[int, Traced]] = {}

    def keep(self, model: str, traced: Traced) -> None:
        if model not in self.by_model and len(self.by_model) >= _MOST_MODELS:
            self.by_model.pop(next(iter(self.by_model)))
        self.by_model.setdefault(model, {})[bisect_left(DURATION_SECONDS, traced.duration_s)] = traced

    def of(self, model: str) -> Mapping[int, Traced]:
        return self.by_model.get(model, {})
