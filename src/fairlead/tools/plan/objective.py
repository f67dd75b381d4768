"""The objective of a plan: one number from latency and quality, less is better.

Latencies may be in any unit, as long as `penalty` is in the same one. Source: Cascadia section 3.3 and appendix C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Objective(Protocol):
    def score(self, latency: Floats, quality: Floats) -> Floats: ...

    def met(self, latency: Floats, quality: Floats) -> NDArray[np.bool_]: ...


@dataclass(frozen=True, slots=True)
class LeastLatency:
    """J = L + penalty * max(0, (least_quality - Q) / (utopia - nadir))."""

    least_quality: float
    utopia: float  # quality of the last model alone
    nadir: float  # quality of the first model alone
    penalty: float

    def score(self, latency: Floats, quality: Floats) -> Floats:
        shortfall = np.maximum(0.0, (self.least_quality - quality) / (self.utopia - self.nadir))
        return latency + self.penalty * shortfall

    def met(self, latency: Floats, quality: Floats) -> NDArray[np.bool_]:
        return np.isfinite(latency) & (quality >= self.least_quality)


@dataclass(frozen=True, slots=True)
class MostQuality:
    """J = -Q + penalty * max(0, L - most_latency) / (slowest - fastest)."""

    most_latency: float
    fastest: float
    slowest: float
    penalty: float

    def score(self, latency: Floats, quality: Floats) -> Floats:
        return -quality + self.penalty * np.maximum(0.0, latency - self.most_latency) / (self.slowest - self.fastest)

    def met(self, latency: Floats, quality: Floats) -> NDArray[np.bool_]:
        return (latency <= self.most_latency) & np.isfinite(quality)
