"""Streams of one engine that have just ended: whole, or as it died.

An engine opens a stream before it computes the prompt, and the gateway ends the call in which we see it in the same way
however the stream ends. So only its probes tell: those that ended since it last answered one may be what it died of.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fairlead.core.endpoint import Endpoint
    from fairlead.core.placement import Placement
    from fairlead.core.suspects import Lost

MOST: Final = 256  # in the second between two probes; the oldest is forgotten first


class StreamEnds:
    """Times are of the caller's clock."""

    __slots__ = ("_died_s", "_ends")

    def __init__(self) -> None:
        self._ends: deque[tuple[Placement, Lost, float]] = deque(maxlen=MOST)  # with when it ended
        self._died_s = -inf

    def ended(self, placement: Placement, stream: Lost, endpoint: Endpoint, now_s: float) -> None:
        """A stream of `endpoint`, whose these are. One that was open as it died may end long after that."""
        if self._died_s >= stream.sent_s:
            placement.stream_lost(stream, endpoint, now_s)
        else:
            self._ends.append((placement, stream, now_s))

    def confirmed(self, asked_s: float) -> None:
        """The engine answers a probe that was sent then: what had ended before was whole."""
        ends = self._ends
        while ends and ends[0][2] < asked_s:
            ends.popleft()

    def died(self, endpoint: Endpoint, now_s: float) -> None:
        self._died_s = now_s
        ends, self._ends = self._ends, deque(maxlen=MOST)
        for placement, stream, _ in ends:
            placement.stream_lost(stream, endpoint, now_s)
