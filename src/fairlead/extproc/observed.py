"""One answer that is observed in full: when its first token came, when it ended, and the token counts it reports."""

from __future__ import annotations

from fairlead.api.usage import UsageReader
from fairlead.core.budget import ObservationBudget
from fairlead.core.observation import Observation
from fairlead.extproc.pick import Pick

EVENT_STREAM = b"text/event-stream"


class ObservedAnswer:
    """Fed by the stream with each part of the response body; times are of the stream's clock, in seconds.

    `budget` has been opened for it, and is notified at its end.
    """

    __slots__ = ("_budget", "_events", "_has_ended", "_parts", "_pick", "_reader")

    def __init__(self, pick: Pick, content_type: bytes, budget: ObservationBudget) -> None:
        self._pick = pick
        self._budget = budget
        self._parts = 0
        self._has_ended = False
        self._events = content_type.startswith(EVENT_STREAM)
        self._reader = UsageReader(events=self._events)

    def part(self, body: bytes, now_s: float) -> None:
        self._parts += 1
        if body:
            self._pick.in_flight.first_token(now_s)
        self._reader.feed(body)

    def ended(self, now_s: float) -> Observation:
        self.cut()
        self._reader.end()
        return self._pick.in_flight.observation(self._reader.usage, now_s, streamed=self._events)

    def cut(self) -> None:
        """Nothing more of it comes, complete or not."""
        if not self._has_ended:
            self._has_ended = True
            self._budget.ended(self._parts, streamed=self._events)
