"""By what factor one engine is slower than its model's line says, out of its own last samples.

Chance must not make equal engines look different, or requests pile up on those that look faster: an engine has its
model's times until its samples rule that out. One that changes is judged by what it did since. Prefill is taken to be
as slow as decoding until its own samples rule that out: an accelerator is slow at both, and prefill is hard to see
under load.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Final, NamedTuple

from fairlead.core.answer_times import Line, Work, weight
from fairlead.core.speed_changes import SpeedChanges
from fairlead.core.witnesses import MOMENT_S, shares
from fairlead.statistics import weighted_quantile

MOST_SAMPLES: Final = 64  # of one engine
_NEW: Final = 16  # of these; older ones are at least a moment apart, as those of one say the same
_HALF_LIFE: Final = 24.0  # witnesses
_USUAL_SPREAD: Final = 0.5  # standard deviation of the logarithm of a ratio, until samples show their own
_USUAL_COUNTS: Final = 6.0  # weight of that, in samples
_SURE: Final = (12.0, 30.0)  # squared, a difference over its error: up to the first chance, from the second certain
_WITNESSES: Final = 3  # samples of different moments at least, to believe in a difference
_LEAST_DIFFERENCE: Final = math.log(1.15)  # smaller ones cost nothing, and cannot be told from chance
_NEWEST: Final = 10  # samples that can show a change
_NEWEST_WEIGHT: Final = 2.0
_CHANGE: Final = math.log(1.5)
_NEARLY_NONE: Final = 0.1  # share of the newest samples that may look as before: a few outliers are no change
_MOST_DIFFERENCE: Final = math.log(30.0)  # no accelerator is slower than another by more
_TINY_MS: Final = 1e-9
_OF_MEDIAN: Final = 1.4826

_PAIRED: Final = (1, 2, 4, 8, 16, 32, 64)  # samples ago: what a new one is compared with, to see changes

OwnMs = Callable[[Work, Line], float]


def prefill_ms(work: Work, line: Line) -> float:
    """The part of a sample's time that its own prefill is expected to take."""
    return line.own_prefill_ms(work)


def decode_ms(work: Work, line: Line) -> float:
    """The part of a sample's time that its decoding is expected to take."""
    return line.alone_ms * (work.steps + line.slowdown * work.concurrent)


class Seen(NamedTuple):
    """An engine's samples as a line sees them, the oldest first."""

    ended_s: list[float]
    logs: list[float]  # of what each took over what the line says
    weights: list[float]

    def changed_s(self) -> float:
        """When the first sample at its present speed ended; earlier samples were at another speed."""
        older = _changed(self.logs, self.weights)
        return self.ended_s[older] if older else -math.inf

    def since(self, time_s: float) -> Seen:
        """Those that ended then or later, from the first such on."""
        first = next((n for n, ended_s in enumerate(self.ended_s) if ended_s >= time_s), len(self.ended_s))
        return Seen(*(column[first:] for column in self)) if first else self


class EngineFactor:
    """The last samples of one engine, of prefill or of decoding."""

    __slots__ = ("_of_witness", "_own_ms", "samples", "seen_value", "value", "weight")

    def __init__(self, own_ms: OwnMs) -> None:
        self.samples: deque[Work] = deque(maxlen=MOST_SAMPLES)
        self.value = 1.0  # what is expected
        self.seen_value = 1.0  # the same, however long ago it was seen
        self.weight = 0.0  # of the samples, in undisturbed ones of nothing else
        self._own_ms = own_ms
        self._of_witness: list[float] | None = None  # until the samples are others

    def add(self, work: Work, line: Line, changes: SpeedChanges) -> None:
        """Keep a sample, and tell `changes` how it differs from earlier ones."""
        self._compare(work, line, changes)
        if len(self.samples) == MOST_SAMPLES:
            samples = self.samples
            apart_s = samples[-_NEW].ended_s - samples[-_NEW - 1].ended_s
            del samples[-_NEW if apart_s < MOMENT_S else 0]
        self.samples.append(work)
        self._of_witness = None

    def _compare(self, work: Work, line: Line, changes: SpeedChanges) -> None:
        log, counts = self._log_and_weight(work, line)
        if counts <= 0:
            return
        changes.add(log, counts)
        for ago in _PAIRED:
            if ago > len(self.samples):
                break
            other = self.samples[-ago]
            other_log, others = self._log_and_weight(other, line)
            if others > 0:
                both = 2 * counts * others / (counts + others)
                changes.add_pair(abs(work.ended_s - other.ended_s), log - other_log, both)

    def _log_and_weight(self, work: Work, line: Line) -> tuple[float, float]:
        by_line_ms = line.ms(work)
        if by_line_ms <= 0:
            return 0.0, 0.0
        share = self._own_ms(work, line) / by_line_ms
        return math.log(work.took_ms / by_line_ms), weight(work, line) * share * share

    def seen(self, line: Line) -> Seen:
        found = [self._log_and_weight(each, line) for each in self.samples]
        return Seen([each.ended_s for each in self.samples], [log for log, _ in found], [counts for _, counts in found])

    def settle(self, seen: Seen, changes: SpeedChanges, now_s: float, expected: float = 1.0) -> None:
        """Set `value` to what `seen` shows relative to its line; to `expected` until it rules that out.

        Samples of before are forgotten. `changes` says how much less a sample shows of an engine's speed at `now_s`,
        the older it is.
        """
        self._forget_all_but(len(seen.logs))
        if not seen.logs:
            self.value, self.weight = expected, 0.0
            return
        of_witness = self._of_witness = self._of_witness or shares(self.samples)
        weights = list(map(mul, seen.weights, _recency(of_witness)))
        weighed = list(map(mul, weights, of_witness))
        self.weight = sum(weighed)
        difference = weighted_quantile(seen.logs, weighed, 0.5) - math.log(expected)
        kept = changes.kept([now_s - ended_s for ended_s in seen.ended_s], difference)
        weights = list(map(mul, _bounded(weights, of_witness), of_witness))
        self.value = expected * math.exp(_shown(seen.logs, weights, kept, expected))

    def rescale(self, times: float) -> None:
        """The line became slower by `times`."""
        self.value /= times
        self.seen_value /= times

    def _forget_all_but(self, newest: int) -> None:
        while len(self.samples) > newest:
            self.samples.popleft()
            self._of_witness = None

    def extra_ms(self, line: Line, expected: float) -> float:
        """What each request takes here beyond `line`, where that explains the samples better than a factor does.

        0 until a difference is believed, and where a factor explains it: an accelerator that is slow is slow at every
        token, while a server that is slow takes as long for a short prompt as for a long one.
        """
        samples = [each for each in self.samples if each.requests and line.ms(each) > 0]
        if len(samples) < _WITNESSES or self.value == expected:
            return 0.0
        weights = [weight(each, line) * age for each, age in zip(samples, _recency([1.0] * len(samples)), strict=True)]
        if sum(weights) <= 0:
            return 0.0
        by_line_ms = [expected * line.ms(each) for each in samples]
        beyond_ms = [each.took_ms - ms for each, ms in zip(samples, by_line_ms, strict=True)]
        extra_ms = max(weighted_quantile(beyond_ms, weights, 0.5), -expected * line.fixed_ms)
        _, spread = _middle([math.log(s.took_ms / ms) for s, ms in zip(samples, by_line_ms, strict=True)], weights)
        explained_ms = [max(ms + extra_ms, _TINY_MS) for ms in by_line_ms]
        rests = [abs(math.log(s.took_ms / ms)) for s, ms in zip(samples, explained_ms, strict=True)]
        return extra_ms if _OF_MEDIAN * weighted_quantile(rests, weights, 0.5) < spread else 0.0


def _recency(of_witness: Sequence[float]) -> list[float]:
    """What age leaves to each sample, halved by every `_HALF_LIFE` witnesses that came later."""
    later = list(accumulate(reversed(of_witness), initial=0.0))
    return [0.5 ** (newer / _HALF_LIFE) for newer in reversed(later[:-1])]


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


def _bounded(weights: list[float], of_witness: list[float]) -> list[float]:
    """None of them more than that of `_WITNESSES`: one that stalled for a cause of its own proves nothing. All 0 where
    there are fewer.

    An engine that is taken for slow gets few requests, so it would hardly get the chance to show the contrary.
    """
    witnesses = 0.0
    for heaviest, share in sorted(zip(weights, of_witness, strict=True), reverse=True):
        witnesses += share
        if witnesses >= _WITNESSES:
            return [min(weight, heaviest) for weight in weights]
    return [0.0] * len(weights)


def _shown(logs: list[float], weights: list[float], kept: list[float], expected: float) -> float:
    """The difference from `expected`, as a logarithm, as far as it is certain.

    `kept` is the share that is left of the difference that each sample shows, which is of another time: so much of it
    is believed, and the newest count most where that is little.
    """
    weights = [w * share * share for w, share in zip(weights, kept, strict=True)]
    total = sum(weights)
    if total <= 0:
        return 0.0
    middle, spread = _middle(logs, weights)
    difference = min(max(middle, -_MOST_DIFFERENCE), _MOST_DIFFERENCE) - math.log(expected)
    if abs(difference) < _LEAST_DIFFERENCE:
        return 0.0
    variance = (_USUAL_COUNTS * _USUAL_SPREAD**2 + total * spread**2) / (_USUAL_COUNTS + total)
    certainty = (total * difference**2 / variance - _SURE[0]) / (_SURE[1] - _SURE[0])
    left: float = sum(map(mul, weights, kept)) / total
    return difference * min(max(certainty, 0.0), 1.0) * left


def _middle(logs: list[float], weights: list[float]) -> tuple[float, float]:
    """The weighted median, and the usual distance from it."""
    middle = weighted_quantile(logs, weights, 0.5)
    return middle, _OF_MEDIAN * weighted_quantile([abs(each - middle) for each in logs], weights, 0.5)
