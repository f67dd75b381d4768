"""What decoding a token takes with one model: alone, and how much each other request on the engine adds.

The time of a step is linear in the requests that decode and in the prompt tokens computed in it. Under load, most of
an answer's time goes to others' prompts; these are another term of the cost, so they are a term of their own here.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median
from typing import Final, NamedTuple

from fairlead.core.endpoint import USUAL_SLOWDOWN
from fairlead.statistics import least_squares

_ASSUMED: Final = 1.0  # answers: the weight of the usual values
_TRUSTED_SHARE: Final = 0.75  # of answers; those farthest from the line had another cause


class Sample(NamedTuple):
    """One answer, averaged over its tokens after the first."""

    concurrent_requests: float
    prefilled_tokens: float  # of others' prompts, for each token of the answer
    ms_per_token: float


class DecodeLine(NamedTuple):
    """ms per token = alone_ms * (1 + slowdown * concurrent_requests) + prefill_ms * prefilled_tokens."""

    alone_ms: float
    slowdown: float  # 0 to 1: at most, requests take turns
    prefill_ms: float

    def ms_per_token(self, sample: Sample) -> float:
        step_ms = self.alone_ms * (1 + self.slowdown * sample.concurrent_requests)
        return step_ms + self.prefill_ms * sample.prefilled_tokens


class DecodeTime:
    """The last samples of one model, of any of its engines."""

    __slots__ = ("_samples",)

    def __init__(self, window: int) -> None:
        self._samples: deque[Sample] = deque(maxlen=window)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def line(self, prefill_ms_per_token: float) -> DecodeLine:
        """The line that fits best in relative terms; needs one sample. `prefill_ms_per_token` is assumed beforehand."""
        samples = list(self._samples)
        first = _fitted(samples, prefill_ms_per_token)
        samples.sort(key=lambda one: abs(first.ms_per_token(one) / one.ms_per_token - 1))
        return _fitted(samples[: max(1, int(_TRUSTED_SHARE * len(samples)))], prefill_ms_per_token)


def _fitted(samples: list[Sample], prefill_ms_per_token: float) -> DecodeLine:
    """Ridge regression with relative errors: a constant that the samples do not determine keeps its usual value."""
    concurrent, prefilled, took_ms = (list(column) for column in zip(*samples, strict=True))
    typical_ms = median(took_ms)
    typical_concurrent, typical_prefilled = fmean(concurrent), fmean(prefilled)
    added_ms = USUAL_SLOWDOWN * typical_ms / (1 + USUAL_SLOWDOWN * typical_concurrent)
    weights = [1 / max(ms, 0.1 * typical_ms) ** 2 for ms in took_ms]  # an absurd one must not outweigh all others
    assumed = (
        (0.0, 0.0),
        (_ASSUMED * ((typical_concurrent + 1) / typical_ms) ** 2, added_ms),
        (_ASSUMED * ((typical_prefilled + 1) / typical_ms) ** 2, prefill_ms_per_token),
    )
    columns = ([1.0] * len(samples), concurrent, prefilled)
    alone_ms, each_ms, prefill_ms = least_squares(columns, took_ms, weights, assumed)
    alone_ms = max(alone_ms, 0.1 * min(took_ms))
    return DecodeLine(alone_ms, min(max(each_ms / alone_ms, 0.0), 1.0), max(prefill_ms, 0.0))
