"""By how much engines of one model change their speed within a time, as pairs of samples of the same engine show.

A sample shows the speed of its time. Where clocks throttle or somebody else shares the accelerator, one of five minutes
ago says little about now, and a request that leaves its cached prefix for a quick engine pays for certain and gains by
chance. Where speeds never change, a sample of an hour ago is as good as one of now. Which it is differs from pool to
pool, so it is measured: the mean square difference of two samples, by the time between them, less that of two samples
of about the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FIRST_S: Final = 8.0  # samples nearer in time than this are of about the same time
_STEP: Final = 4.0  # each span is so many times as long as the one before
_SPANS: Final = 6
_LEAST_PAIRS: Final = 6.0  # weight, in undisturbed pairs, from which a span's mean counts
_MOST_PAIRS: Final = 256.0  # older pairs fade, so that a pool that becomes steady is noticed
_MOST: Final = 1.2  # of a squared difference: a stall is no change of speed


class SpeedChanges:
    """Of all engines of one model together: one engine alone has few samples that are far apart."""

    __slots__ = ("_pairs", "_samples", "_square", "_squares", "_times_s")

    def __init__(self) -> None:
        self._pairs = [0.0] * _SPANS
        self._squares = [0.0] * _SPANS
        self._times_s = [0.0] * _SPANS
        self._samples = 0.0
        self._square = 0.0

    def add(self, difference: float, weight: float) -> None:
        """A sample whose logarithm is `difference` from its model's."""
        fade = 1.0 - weight / _MOST_PAIRS
        self._samples = self._samples * fade + weight
        self._square = self._square * fade + weight * min(difference * difference, _MOST)

    def add_pair(self, apart_s: float, difference: float, weight: float) -> None:
        """Two samples of one engine, `apart_s` from each other, whose logarithms differ by `difference`."""
        span, end_s = 0, _FIRST_S
        while apart_s >= end_s and span < _SPANS - 1:
            span, end_s = span + 1, end_s * _STEP
        fade = 1.0 - weight / _MOST_PAIRS
        self._pairs[span] = self._pairs[span] * fade + weight
        self._squares[span] = self._squares[span] * fade + weight * min(difference * difference, _MOST)
        self._times_s[span] = self._times_s[span] * fade + weight * apart_s

    def kept(self, ages_s: Sequence[float], difference: float) -> list[float]:
        """The shares that are left after each of `ages_s` of an engine's `difference` from its model, on average.

        From 1 down to 0. A difference that is larger than usual is itself a sign of how much engines differ.
        1 until there are pairs to tell it from, and past the longest time of any no less than there.
        """
        known = [i for i, pairs in enumerate(self._pairs) if pairs >= _LEAST_PAIRS]
        if len(known) < 2:
            return [1.0] * len(ages_s)
        noise = self._squares[known[0]] / self._pairs[known[0]]
        usual = self._square / self._samples - noise / 2
        differ = max(usual, difference * difference)  # the variance among engines and times
        times_s, grown = [0.0], [0.0]
        for i in known[1:]:
            times_s.append(self._times_s[i] / self._pairs[i])
            grown.append(max(grown[-1], self._squares[i] / self._pairs[i] - noise))
        left = []
        for age_s in ages_s:
            changed = _at(age_s, times_s, grown)
            left.append(1.0 - changed / (2 * differ) if changed < 2 * differ else 0.0)
        return left


def _at(time_s: float, times_s: Sequence[float], values: Sequence[float]) -> float:
    """Between two of `times_s`, which ascend, on the line through both values; past the last one its value."""
    for i in range(1, len(times_s)):
        if time_s < times_s[i]:
            into = (time_s - times_s[i - 1]) / (times_s[i] - times_s[i - 1])
            return values[i - 1] + (values[i] - values[i - 1]) * into
    return values[-1]
