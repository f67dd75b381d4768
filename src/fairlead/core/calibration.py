"""How well expected times were met: first tokens and pace, expected at the decision against seen, by tenths of what was
expected.

Only answers that are observed in full count, and only where the endpoint that was chosen answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, Literal, NamedTuple

from fairlead.core.observation import LEAST_DECODE_TOKENS, Observation
from fairlead.core.policy import Decision
from fairlead.core.slo import expected_first_token_ms, expected_pace_ms
from fairlead.statistics import quantile

KEPT: Final = 1000  # answers of one model
_MOST_UNSETTLED: Final = 1024
_MOST_MODELS: Final = 64
_TENTHS: Final = 10

Time = Literal["first_token", "pace"]


class Tenth(NamedTuple):
    """A tenth of the answers, of those from which least was expected to those from which most was."""

    answers: int
    expected_ms: float  # on average
    seen_p50_ms: float
    seen_p90_ms: float
    in_time: float  # share of those that took no longer than was expected


class Calibration:
    """`observed` only keeps references, for the path of an answer; whoever reads must `settle` first."""

    def __init__(self) -> None:
        self._unsettled: deque[tuple[Decision, Observation]] = deque(maxlen=_MOST_UNSETTLED)
        self._pairs: dict[tuple[str, Time], deque[tuple[float, float]]] = {}

    def observed(self, decision: Decision, seen: Observation) -> None:
        self._unsettled.append((decision, seen))

    def settle(self) -> None:
        while self._unsettled:
            self._count(*self._unsettled.popleft())

    def tenths(self) -> Mapping[tuple[str, Time], Sequence[Tenth]]:
        """By model, of models with ten answers or more."""
        return {key: _tenths(sorted(pairs)) for key, pairs in self._pairs.items() if len(pairs) >= _TENTHS}

    def _count(self, decision: Decision, seen: Observation) -> None:
        if not decision.best or not seen.direct or seen.media or seen.several or seen.first_token_ms is None:
            return
        chosen = decision.best[0].candidate
        if chosen.address != seen.address:
            return
        self._add(seen.model, "first_token", expected_first_token_ms(chosen), seen.first_token_ms)
        steps = (seen.completion_tokens or 0) - 1
        if seen.decode_ms and steps >= LEAST_DECODE_TOKENS:
            self._add(seen.model, "pace", expected_pace_ms(chosen), seen.decode_ms / steps)

    def _add(self, model: str, time: Time, expected_ms: float, seen_ms: float) -> None:
        pairs = self._pairs.get((model, time))
        if pairs is None:
            if len(self._pairs) >= 2 * _MOST_MODELS:
                self._pairs.pop(next(iter(self._pairs)))
            pairs = self._pairs[model, time] = deque(maxlen=KEPT)
        pairs.append((expected_ms, seen_ms))


def _tenths(pairs: Sequence[tuple[float, float]]) -> Sequence[Tenth]:
    """`pairs` of expected and seen, sorted."""
    found = []
    for tenth in range(_TENTHS):
        part = pairs[tenth * len(pairs) // _TENTHS : (tenth + 1) * len(pairs) // _TENTHS]
        seen = [each for _, each in part]
        in_time = sum(each <= expected for expected, each in part) / len(part)
        expected_ms = fmean(expected for expected, _ in part)
        found.append(Tenth(len(part), expected_ms, quantile(seen, 0.5), quantile(seen, 0.9), in_time))
    return found
