"""How long an engine keeps a prefix, as far as its reports of cached tokens show.

Traffic that this router does not see fills engines' caches too, so they evict sooner than the prefix index expects.
An engine evicts what it used least recently: what it denies to have was used longer ago than what it keeps, and the age
that best separates the two is the time after which nothing there is expected any more.

No part weighs more than the median one: else a few long prompts, of a client that has the engine deny them, would have
everybody's forgotten there.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median
from typing import Final, NamedTuple

from fairlead.api.usage import UsageForm

WINDOW: Final = 64
LEAST_TOKENS: Final = 128  # of a part that is denied; fewer may be a matter of whole blocks
_DENIED: Final = 2.0  # as bad as the opposite: what is wrongly expected draws requests to where they are computed anew
_KEPT_LONGER: Final = 1.25  # times the retention: how old what surprisingly was there is taken to be


class _Seen(NamedTuple):
    age_s: float
    kept: bool
    tokens: float


class Retention:
    """Of one engine. `value_s` is infinite until it denies something."""

    __slots__ = ("_seen", "reports", "value_s")

    def __init__(self) -> None:
        self.value_s = inf
        # Forms of answers in which it once reported cached tokens: from then on none reported means 0.
        self.reports: set[UsageForm | None] = set()
        self._seen: deque[_Seen] = deque(maxlen=WINDOW)

    def observe(self, age_s: float, tokens: float, *, kept: bool) -> None:
        """A part of a prompt, last used `age_s` ago, was still cached there, or not."""
        self._seen.append(_Seen(max(0.0, age_s), kept, tokens))
        if not kept or self.value_s < inf:
            self.value_s = self._separating_age_s()

    def surprised(self, tokens: float) -> None:
        """More was cached there than was expected, because it was taken to be gone."""
        if self.value_s < inf:
            self.observe(self.value_s * _KEPT_LONGER, tokens, kept=True)

    def _separating_age_s(self) -> float:
        """The age with the fewest tokens on its wrong side: kept after it, or denied before it; the oldest such one."""
        seen = sorted(self._seen, key=lambda each: (each.age_s, not each.kept))
        most = median([each.tokens for each in seen])
        wrong = least = sum(min(each.tokens, most) for each in seen if each.kept)  # if everything is taken to be gone
        best = 0
        for number, each in enumerate(seen, 1):
            tokens = min(each.tokens, most)
            wrong += -tokens if each.kept else tokens * _DENIED
            if wrong <= least and (number == len(seen) or seen[number].age_s > each.age_s):
                least, best = wrong, number
        if best == len(seen):
            return inf
        newer = seen[best - 1].age_s if best else 0.0
        return (newer + seen[best].age_s) / 2
