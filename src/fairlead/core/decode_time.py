"""What decoding a token takes with one model: alone, and how much each other request on the engine adds.

A step is a line in the requests that decode and in the prompt tokens that are computed in it. Most of what an answer
meets under load are others' prompts; they are another term of the cost, so they are told apart here.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median
from typing import Final, NamedTuple

USUAL_SLOWDOWN: Final = 0.015  # of decoding alone, by each other request: until loads differ enough to tell
_ASSUMED: Final = 1.0  # answers: what is usual counts as much as so many
_TRUSTED_SHARE: Final = 0.75  # of answers; those that the line misses most met something else


class Sample(NamedTuple):
    """One answer's mean over its tokens after the first."""

    beside_requests: float
    prefilled_tokens: float  # of others' prompts, for each token of the answer
    ms_per_token: float


class Line(NamedTuple):
    """ms per token = alone_ms * (1 + slowdown * beside_requests) + prefill_ms * prefilled_tokens."""

    alone_ms: float
    slowdown: float  # 0 to 1: at most, requests take turns
    prefill_ms: float

    def ms_per_token(self, sample: Sample) -> float:
        return self.alone_ms * (1 + self.slowdown * sample.beside_requests) + self.prefill_ms * sample.prefilled_tokens


class DecodeTime:
    """The last samples of one model, of any of its engines."""

    __slots__ = ("_samples",)

    def __init__(self, window: int) -> None:
        self._samples: deque[Sample] = deque(maxlen=window)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    @property
    def samples(self) -> int:
        return len(self._samples)

    def line(self, prefill_ms_per_token: float) -> Line:
        """The line that fits best in relative terms; needs one sample. `prefill_ms_per_token` is assumed beforehand."""
        samples = list(self._samples)
        first = _fitted(samples, prefill_ms_per_token)
        samples.sort(key=lambda one: abs(first.ms_per_token(one) / one.ms_per_token - 1))
        return _fitted(samples[: max(1, int(_TRUSTED_SHARE * len(samples)))], prefill_ms_per_token)


def _fitted(samples: list[Sample], prefill_ms_per_token: float) -> Line:
    """Ridge regression with relative errors: what nothing is said of by the samples stays as it usually is."""
    typical_ms = median([one.ms_per_token for one in samples])
    typical_beside = fmean([one.beside_requests for one in samples])
    typical_prefilled = fmean([one.prefilled_tokens for one in samples])
    added_ms = USUAL_SLOWDOWN * typical_ms / (1 + USUAL_SLOWDOWN * typical_beside)
    matrix = [[0.0] * 3 for _ in range(3)]
    vector = [0.0] * 3
    for one in samples:
        inputs = (1.0, one.beside_requests, one.prefilled_tokens)
        weight = 1 / max(one.ms_per_token, 0.1 * typical_ms) ** 2  # an absurd one must not outweigh all others
        for i in range(3):
            vector[i] += weight * inputs[i] * one.ms_per_token
            for j in range(3):
                matrix[i][j] += weight * inputs[i] * inputs[j]
    assumed = _ASSUMED / typical_ms**2
    for i, typical, value in ((1, typical_beside + 1, added_ms), (2, typical_prefilled + 1, prefill_ms_per_token)):
        matrix[i][i] += assumed * typical**2
        vector[i] += assumed * typical**2 * value
    alone_ms, each_ms, prefill_ms = _solved(matrix, vector)
    alone_ms = max(alone_ms, 0.1 * min(one.ms_per_token for one in samples))
    return Line(alone_ms, min(max(each_ms / alone_ms, 0.0), 1.0), max(prefill_ms, 0.0))


def _solved(matrix: list[list[float]], vector: list[float]) -> tuple[float, float, float]:
    """Three equations, positive definite, by elimination."""
    (a, b, c), (_, d, e), (_, _, f) = matrix
    x, y, z = vector
    d, e, y = d - b * b / a, e - b * c / a, y - b * x / a
    f, z = f - c * c / a - e * e / d, z - c * x / a - e * y / d
    third = z / f
    second = (y - e * third) / d
    return (x - b * second - c * third) / a, second, third
