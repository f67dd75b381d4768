"""How long the answers of each tenant are, over the usual ones of their models.

What a request takes is charged as it begins, when nobody knows how long its answer will be. By the usual length alone a
tenant of long answers would be given many times the engine time of one of short ones. Only a sample of all answers is
observed, so none is settled at its end: the next ones of its tenant cost more, or less.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MOST_TENANTS: Final = 4096
_KEPT: Final = 0.95  # of what was seen, with as much more as a usual answer: some twenty count
_PRIOR: Final = (2.0, 2.0)  # usual answers that count before any was seen
_MOST: Final = 32.0  # times the usual length, or less than it
_LONGEST: Final = 1000.0  # usual answers, that one may be: engines may report any number


class AnswerLengths:
    """By tenant; the one that was seen least lately is forgotten first."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # what came, and what was to be expected

    def of(self, tenant: bytes) -> float:
        """Times the usual length; 1 where nothing is known."""
        came, expected = self._seen.get(tenant, _PRIOR)
        return min(max(came / expected, 1 / _MOST), _MOST)

    def observed(self, tenant: bytes, tokens: float, expected_tokens: float, usual_tokens: float) -> None:
        """An answer had `tokens`. `expected_tokens` are those of a usual one, or as many as its request allowed."""
        came, expected = self._seen.pop(tenant, _PRIOR)
        more = min(expected_tokens / usual_tokens, _LONGEST)
        kept = _KEPT**more  # else some answers of one token each would make those before them forgotten
        self._seen[tenant] = kept * came + min(tokens / usual_tokens, _LONGEST), kept * expected + more
        if len(self._seen) > MOST_TENANTS:
            self._seen.popitem(last=False)
