"""One answer that is observed in full: when its first token came, when it ended, and the token counts it reports."""

from __future__ import annotations

import math
from typing import Final

from fairlead.api.token_events import TokenEvents
from fairlead.api.usage import UsageReader
from fairlead.core.budget import ObservationBudget
from fairlead.core.observation import Observation
from fairlead.extproc.pick import Pick

EVENT_STREAM = b"text/event-stream"
_TOGETHER_S: Final = 0.001  # parts so soon after the first had been waiting with it
_MOST_WITHOUT_TOKENS: Final = 64  # parts, comments that keep it open too: a stream of more is compressed, or not known


class ObservedAnswer:
    """Fed by the stream with each part of the response body; times are of the stream's clock, in seconds.

    `budget` has been opened for it, and is notified at its end.
    """

    __slots__ = (
        "_budget",
        "_events",
        "_first_events",
        "_first_s",
        "_has_ended",
        "_parts",
        "_pick",
        "_reader",
        "_tokens",
    )

    def __init__(self, pick: Pick, content_type: bytes, budget: ObservationBudget) -> None:
        self._pick = pick
        self._budget = budget
        self._parts = 0
        self._has_ended = False
        is_stream = content_type.startswith(EVENT_STREAM)
        self._tokens = TokenEvents() if is_stream else None
        self._events = self._first_events = 0  # that bring tokens: of the stream, and of what came first
        self._first_s = math.inf
        self._reader = UsageReader(events=is_stream)

    def part(self, body: bytes, now_s: float) -> None:
        self._parts += 1
        tokens = self._tokens
        brings = bool(body) if tokens is None else tokens.in_part(body)
        if brings:
            self._events += brings
            if self._first_s == math.inf:
                self._first_s = now_s
                self._pick.in_flight.first_token(now_s)
            if now_s - self._first_s <= _TOGETHER_S:
                self._first_events = self._events
        elif self._parts == _MOST_WITHOUT_TOKENS and not self._events:
            self._pick.in_flight.look_away()
        self._reader.feed(body)

    def ended(self, now_s: float) -> Observation:
        self.cut()
        self._reader.end()
        usage, streamed = self._reader.usage, self._tokens is not None
        return self._pick.in_flight.observation(usage, now_s, streamed=streamed, first_tokens=self._first_tokens())

    def _first_tokens(self) -> int:
        """How many of the answer's tokens came at once with the first; an event without text stands before them.

        The first event with text has one token. Each further one has its share of the rest, which may be many: engines
        send tokens several at a time (vLLM's `stream_interval`), and none for a token without text.
        """
        tokens = self._reader.usage.completion_tokens or 1
        further = (self._first_events - 2) / max(1, self._events - 2)
        return max(1, 1 + round((tokens - 1) * further))

    @property
    def events(self) -> int:
        """That have brought tokens so far; of an answer in one piece, its parts."""
        return self._events

    def cut(self) -> None:
        """Nothing more of it comes, complete or not."""
        if not self._has_ended:
            self._has_ended = True
            self._pick.in_flight.look_away()
            self._budget.ended(self._parts, streamed=self._tokens is not None)
