"""By what factor one engine is slower than its model's line says, out of its own last samples.

Chance must not make equal engines look different, or requests pile up on those that look faster: an engine has its
model's times until its samples rule that out. One that changes is judged by what it did since. Prefill is taken to be
as slow as decoding until its own samples rule that out: an accelerator is slow at both, and prefill is hard to see
under load.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from fairlead.core.answer_times import Line, Work, weight
from fairlead.statistics import weighted_quantile

MOST_SAMPLES: Final = 64  # of one engine
_HALF_LIFE: Final = 24  # samples
_USUAL_SPREAD: Final = 0.5  # standard deviation of the logarithm of a ratio, until samples show their own
_USUAL_COUNTS: Final = 6.0  # weight of that, in samples
_SURE: Final = (12.0, 30.0)  # squared, a difference over its error: up to the first chance, from the second certain
_WITNESSES: Final = 3  # samples at least, to believe in a difference
_LEAST_DIFFERENCE: Final = math.log(1.15)  # smaller ones cost nothing, and cannot be told from chance
_NEWEST: Final = 10  # samples that can show a change
_NEWEST_WEIGHT: Final = 2.0
_CHANGE: Final = math.log(1.5)
_NEARLY_NONE: Final = 0.1  # share of the newest samples that may look as before: a few outliers are no change
_MOST_DIFFERENCE: Final = math.log(30.0)  # no accelerator is slower than another by more
_TINY_MS: Final = 1e-9
_OF_MEDIAN: Final = 1.4826

Share = Callable[[Work, Line], float]


def prefill_share(work: Work, line: Line) -> float:
    """The part of a sample's time that its own prefill is expected to take."""
    total_ms = line.ms(work)
    return line.prefill_ms * work.own_tokens / total_ms if total_ms > 0 else 0.0


def decode_share(work: Work, line: Line) -> float:
    """The part of a sample's time that its decoding is expected to take."""
    total_ms = line.ms(work)
    return line.alone_ms * (work.steps + line.slowdown * work.concurrent) / total_ms if total_ms > 0 else 0.0


class EngineFactor:
    """The last samples of one engine, of prefill or of decoding."""

    __slots__ = ("_share", "samples", "value", "weight")

    def __init__(self, share: Share) -> None:
        self.samples: deque[Work] = deque(maxlen=MOST_SAMPLES)
        self.value = 1.0
        self.weight = 0.0  # of the samples, in undisturbed ones of nothing else
        self._share = share

    def settle(self, line: Line, expected: float = 1.0) -> None:
        """Set `value` to what the samples show relative to `line`; to `expected` until they rule it out."""
        samples = [each for each in self.samples if line.ms(each) > 0]
        if not samples:
            self.value, self.weight = expected, 0.0
            return
        logs = [math.log(each.took_ms / line.ms(each)) for each in samples]
        weights = [weight(each, line) * self._share(each, line) ** 2 for each in samples]
        count = len(logs)
        weights = [w * 0.5 ** ((count - 1 - place) / _HALF_LIFE) for place, w in enumerate(weights)]
        self.weight = sum(weights)
        self.value = _believed(logs, weights, expected)

    def changed_s(self, line: Line) -> float:
        """When the first sample at its present speed ended; earlier samples were at another speed."""
        samples = list(self.samples)
        logs = [math.log(each.took_ms / max(line.ms(each), _TINY_MS)) for each in samples]
        older = _changed(logs, [weight(each, line) * self._share(each, line) ** 2 for each in samples])
        return samples[older].ended_s if older else -math.inf

    def forget_before(self, time_s: float) -> None:
        while self.samples and self.samples[0].ended_s < time_s:
            self.samples.popleft()


def _changed(logs: list[float], weights: list[float]) -> int:
    """How many of the oldest samples are of a speed that the engine no longer has."""
    start, newest_weight = len(logs), 0.0
    while start and (len(logs) - start < _NEWEST or newest_weight < _NEWEST_WEIGHT):
        start -= 1
        newest_weight += weights[start]
    if newest_weight < _NEWEST_WEIGHT or sum(weights[:start]) <= 0:
        return 0
    new, new_spread = _middle(logs[start:], weights[start:])
    old, _ = _middle(logs[:start], weights[:start])
    if abs(new - old) <= max(_CHANGE, 3 * new_spread / math.sqrt(newest_weight)):
        return 0
    away = [(each - old) * (1 if new > old else -1) for each in logs[start:]]
    return start if weighted_quantile(away, weights[start:], _NEARLY_NONE) > _LEAST_DIFFERENCE else 0


def _believed(logs: list[float], weights: list[float], expected: float) -> float:
    """None of the samples may weigh more than `_WITNESSES` do: one that stalled for a cause of its own proves nothing.

    An engine that is taken for slow gets few requests, so it would hardly get the chance to show the contrary.
    """
    if len(weights) < _WITNESSES:
        return expected
    heaviest = sorted(weights)[-_WITNESSES]
    weights = [min(w, heaviest) for w in weights]
    total = sum(weights)
    if total <= 0:
        return expected
    middle, spread = _middle(logs, weights)
    difference = min(max(middle, -_MOST_DIFFERENCE), _MOST_DIFFERENCE) - math.log(expected)
    if abs(difference) < _LEAST_DIFFERENCE:
        return expected
    variance = (_USUAL_COUNTS * _USUAL_SPREAD**2 + total * spread**2) / (_USUAL_COUNTS + total)
    certainty = (total * difference**2 / variance - _SURE[0]) / (_SURE[1] - _SURE[0])
    return expected * math.exp(difference * min(max(certainty, 0.0), 1.0))


def _middle(logs: list[float], weights: list[float]) -> tuple[float, float]:
    """The weighted median, and the usual distance from it."""
    middle = weighted_quantile(logs, weights, 0.5)
    return middle, _OF_MEDIAN * weighted_quantile([abs(each - middle) for each in logs], weights, 0.5)
