"""How much each of an engine's samples shows that its others do not: answers that were under way together are made of
the same steps.

One prompt that nobody knew of stalls all that decode at its engine. Were these answers counted one by one, two of them
would prove an engine six times slow; and one that is taken for slow gets no requests with which to show the contrary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from fairlead.core.answer_times import Work

MOMENT_S: Final = 2.0  # what happens at an engine later than this is another matter: some long prompts last so long
_LEAST_S: Final = 1e-6


def shares(samples: Sequence[Work]) -> list[float]:
    """For each of one engine's samples the share of a witness that it is, from 1 down to 0.

    Each speaks for its time, evenly. n samples of the same moment are one witness together; n that last for m moments
    together are m of them, or n if m is more. A short one is not doubted for long ones around it, which speak little
    for its time. Takes n log n.
    """
    took_s = [max(each.took_ms / 1e3, _LEAST_S) for each in samples]
    last_s = max((each.ended_s for each in samples), default=0.0)
    ended_s = [each.ended_s - last_s for each in samples]  # small, so that their sums are exact
    begun_s = [end - took for end, took in zip(ended_s, took_s, strict=True)]
    said_each_s = [1.0 / took for took in took_s]
    begun, ended = _Sum(begun_s, said_each_s), _Sum(ended_s, said_each_s)
    found = []
    for begin, end, took in zip(begun_s, ended_s, took_s, strict=True):
        said = begun.at(end) - ended.at(end) - begun.at(begin) + ended.at(begin)  # of its time, by all: by itself 1
        found.append(min(1.0, max(1.0, took / MOMENT_S) / max(said, 1.0)))
    return found


class _Sum:
    """Of quantities that are 0 until a moment of their own and then grow, each at its own rate."""

    def __init__(self, moments_s: Sequence[float], rates: Sequence[float]) -> None:
        ordered = sorted(zip(moments_s, rates, strict=True))
        self._moments_s = [moment for moment, _ in ordered]
        self._rates = [0.0, *accumulate(rate for _, rate in ordered)]
        self._before = [0.0, *accumulate(moment * rate for moment, rate in ordered)]

    def at(self, time_s: float) -> float:
        begun = bisect_left(self._moments_s, time_s)
        return self._rates[begun] * time_s - self._before[begun]
