"""One answer that is observed in full: when its first token came, when it ended, and what it says of its tokens."""

from __future__ import annotations

from fairlead.core.learning import Observation
from fairlead.extproc.pick import Pick
from fairlead.extproc.usage import UsageReader

EVENT_STREAM = b"text/event-stream"


class ObservedAnswer:
    """Fed by the stream with each part of the response body; times are of the stream's clock, in seconds."""

    __slots__ = ("_beside_at_first", "_events", "_first_part_s", "_pick", "_picked_s", "_prefilled_at_first", "_reader")

    def __init__(self, pick: Pick, picked_s: float, content_type: bytes) -> None:
        self._pick = pick
        self._picked_s = picked_s
        self._events = content_type.startswith(EVENT_STREAM)
        self._reader = UsageReader(events=self._events)
        self._first_part_s: float | None = None
        self._beside_at_first = self._prefilled_at_first = 0

    def part(self, body: bytes, now_s: float) -> None:
        if self._first_part_s is None and body:
            self._first_part_s = now_s
            ticket = self._pick.decision.ticket
            ticket.prefilled()
            self._beside_at_first, self._prefilled_at_first = ticket.beside_requests(), ticket.prefilled_there()
        self._reader.feed(body)

    def first_token_s(self) -> float | None:
        """Seconds from the pick to the first token; unknown for an answer that came in one piece."""
        return self._first_part_s - self._picked_s if self._events and self._first_part_s is not None else None

    def ended(self, now_s: float) -> Observation:
        self._reader.end()
        usage, pick, first_token_s = self._reader.usage, self._pick, self.first_token_s()
        decode_s = now_s - self._first_part_s if first_token_s is not None and self._first_part_s is not None else None
        ticket = pick.decision.ticket
        return Observation(
            address=pick.decision.addresses[0] if ticket.endpoint is None else ticket.endpoint.address,
            model=pick.decision.model,
            language=pick.request.language,
            estimated_tokens=pick.request.tokens,
            ratio=pick.tokens_ratio,
            queued_tokens=pick.decision.queued_tokens,
            rtt_ms=pick.decision.rtt_ms,
            first_token_ms=None if first_token_s is None else first_token_s * 1e3,
            decode_ms=None if decode_s is None else decode_s * 1e3,
            beside_requests=(self._beside_at_first + ticket.beside_requests()) / 2,
            prefilled_tokens=max(0, ticket.prefilled_there() - self._prefilled_at_first),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )
