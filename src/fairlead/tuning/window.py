"""A window: requests decided in a row under one set of weights, and their scores when all have ended.

Requests belong to a window by the number of their decision, not by when they end: by their end, slow requests would be
counted under later weights, and the quick ones after a change would be scored first.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from fairlead.core.policy import Decision, Outcome
from fairlead.statistics import above_rank, quantile
from fairlead.tuning.fair import SCORED_QUANTILE, Sample, Timed

LEAST_FIRST_TOKENS: Final = 40  # fewer do not show a tail
_LEAST_SCORED_SHARE: Final = 0.5  # share of a window's requests
_TOO_MANY_REQUESTS: Final = 429
_CLIENT_ERROR: Final = 400
_CLIENT_LEFT: Final = 499


class Measure(msgspec.Struct, frozen=True):
    """The scores of one window; `first_token_p95_ms` is None if too few first tokens were seen."""

    p95_ms: float  # end to end; infinite if more than a twentieth failed or had not ended
    first_token_p95_ms: float | None
    sample: Sample
    closed_s: float


class Limits(msgspec.Struct, frozen=True):
    """Times that a p95 may not exceed."""

    total_ms: float = math.inf
    first_token_ms: float = math.inf


NO_LIMITS: Final = Limits()


class Window:
    """Decisions `first` to `first + size - 1` of a router."""

    def __init__(self, first: int, size: int, limits: Limits = NO_LIMITS) -> None:
        self._first = first
        self._size = size
        self._limits = limits
        self._ended = 0
        self._times_ms: list[float] = []
        self._first_tokens_ms: list[float] = []
        self._timed: list[Timed] = []
        self._late = 0  # beyond the limits
        self._late_first_tokens = 0
        self._decided_s: float | None = None

    def add(self, decision: Decision, outcome: Outcome) -> None:
        """Count `decision` if it is one of the window's.

        A server's failure counts as a request that never ends, an abandoned answer with the time its client waited:
        without them, the slowest weights would look best. Refusals that the client caused and decisions that the policy
        did not make are ignored.
        """
        if not 0 <= decision.number - self._first < self._size:
            return
        self._ended += 1
        code = outcome.code
        if decision.why == "fallback" or (_CLIENT_ERROR <= code < _CLIENT_LEFT and code != _TOO_MANY_REQUESTS):
            return
        failed = code > _CLIENT_LEFT or code == _TOO_MANY_REQUESTS
        time_ms = math.inf if failed else outcome.total_ms
        self._times_ms.append(time_ms)
        self._late += time_ms > self._limits.total_ms
        if not failed and outcome.prompt_tokens is not None and outcome.completion_tokens is not None:
            self._timed.append(Timed(time_ms, float(outcome.prompt_tokens), float(outcome.completion_tokens)))
        if outcome.first_token_ms is not None:
            self._first_tokens_ms.append(outcome.first_token_ms)
            self._late_first_tokens += outcome.first_token_ms > self._limits.first_token_ms

    def full(self, decided: int, now_s: float, patience_s: float) -> bool:
        """All of its requests have ended, or were given `patience_s` after the last of them was decided."""
        if decided - self._first < self._size - 1:
            return False
        if self._decided_s is None:
            self._decided_s = now_s
        return self._ended == self._size or now_s - self._decided_s > patience_s

    def beyond_limits(self, *, full: bool) -> bool:
        """Whether a limited p95 is exceeded; for a window that is not full, whatever the rest of it brings."""
        seen = len(self._first_tokens_ms)
        first_tokens = seen if full and seen >= LEAST_FIRST_TOKENS else self._size
        return self._late > above_rank(self._size, SCORED_QUANTILE) or (
            self._late_first_tokens > above_rank(first_tokens, SCORED_QUANTILE)
        )

    def measure(self, now_s: float) -> Measure | None:
        """None if too few of its requests count. Those that have not ended count as never ending."""
        times = self._times_ms + [math.inf] * (self._size - self._ended)
        if len(times) < self._size * _LEAST_SCORED_SHARE:
            return None
        seen = len(self._first_tokens_ms) >= LEAST_FIRST_TOKENS
        sample = Sample(tuple(self._timed), times.count(math.inf) / len(times))
        first_token_ms = quantile(self._first_tokens_ms, SCORED_QUANTILE) if seen else None
        return Measure(quantile(times, SCORED_QUANTILE), first_token_ms, sample, now_s)
