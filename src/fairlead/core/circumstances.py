"""Under which circumstances a request was answered: when its first token came, and what else its engine did meanwhile.

The counts of its ticket are looked at when it is admitted, at its first token and at its end; what grew in between
explains what the answer took. What an answer shows is a value, `core.observation`, and what is learned from it is in
`core.learning`.
"""

from __future__ import annotations

from typing import Final, Protocol

from fairlead.api.usage import Usage
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.ledger import Ticket
from fairlead.core.observation import Observation
from fairlead.core.policy import Decision

NEARLY_FULL: Final = 0.75  # of a KV cache: the next prompt may find no room


def is_full(endpoint: Endpoint | None) -> bool:
    """Whether the engine reports requests that it has no room for: our counts do not explain such waits.

    A single waiting request may only await the end of the present step, unless the cache is nearly full.
    """
    if endpoint is None or endpoint.report.stale:
        return False
    report = endpoint.report
    waiting = report.waiting_requests or 0
    return waiting > 1 or (waiting > 0 and (report.kv_usage or 0.0) > NEARLY_FULL)


class Answered(Protocol):
    """A request at its end, as far as its observation reads it."""

    request: RequestFacts
    decision: Decision
    sent_s: float
    from_elsewhere: bool

    @property
    def address(self) -> str:
        """Of the engine that answered."""
        ...

    @property
    def endpoint(self) -> Endpoint | None: ...


class Circumstances:
    """Made when the load is taken; it only reads. Times are of the router's clock."""

    __slots__ = (
        "_came_after_tokens",
        "_concurrent_requests",
        "_decoding_before",
        "_engine_full",
        "_prefilled_attended_tokens",
        "_prefilled_tokens",
        "_ticket",
        "first_token_s",
    )

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self.first_token_s: float | None = None
        self._decoding_before = ticket.concurrent_requests()
        self._concurrent_requests = self._decoding_before  # at the first token, where it is seen
        self._prefilled_tokens, self._prefilled_attended_tokens = ticket.prefilled_there()
        self._came_after_tokens = 0  # until its first token
        self._engine_full = False

    def look_at(self, endpoint: Endpoint | None) -> None:
        """Notes whether the engine has no room now."""
        self._engine_full |= is_full(endpoint)

    def waited(self) -> None:
        """Its prompt is computed: what was sent after it may have delayed it until now."""
        self._came_after_tokens = self._ticket.came_after_tokens()

    def decodes(self) -> None:
        """It begins to decode: from now on what others do counts."""
        self._concurrent_requests = self._ticket.concurrent_requests()
        self._prefilled_tokens, self._prefilled_attended_tokens = self._ticket.prefilled_there()

    def observation(
        self, of: Answered, usage: Usage, now_s: float, *, streamed: bool, first_tokens: int
    ) -> Observation:
        """What the answer shows; `first_tokens` came together with the first."""
        first_token_s = self.first_token_s if streamed else None
        tokens, attended = self._ticket.prefilled_there()
        tokens, attended = tokens - self._prefilled_tokens, attended - self._prefilled_attended_tokens
        if not streamed:
            own = self._ticket.own_prefilled()
            tokens, attended = tokens - own[0], attended - own[1]
        decision, request, endpoint = of.decision, of.request, of.endpoint
        # Else a failed try, or the way of its KV, is in what it took.
        direct = of.address == decision.addresses[0] and not of.from_elsewhere
        self.look_at(endpoint)
        return Observation(
            address=of.address,
            model=decision.model if endpoint is None else endpoint.model,  # of an adapter, its parent: it is as fast
            estimated_tokens=request.tokens,
            queued_tokens=decision.queued_tokens,
            queued_attended_tokens=decision.queued_attended_tokens,
            came_after_tokens=self._came_after_tokens,
            rtt_ms=decision.rtt_ms,
            first_token_ms=None if first_token_s is None else (first_token_s - of.sent_s) * 1e3,
            first_tokens=first_tokens,
            direct=direct,
            adapter=decision.adapter if direct else None,
            decode_ms=None if first_token_s is None else (now_s - first_token_s) * 1e3,
            concurrent_requests=(self._concurrent_requests + self._ticket.concurrent_requests()) / 2,
            prefilled_tokens=max(0, tokens),
            prefilled_attended_tokens=max(0, attended),
            under_way_tokens=0 if endpoint is None else endpoint.prefills.under_way_tokens(),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            usage_form=usage.form,
            completion_tokens=usage.completion_tokens,
            total_ms=None if streamed else (now_s - of.sent_s) * 1e3,
            expected_cached_tokens=decision.cached_tokens,
            decoding_before=self._decoding_before,
            media=request.media,
            features=request.features,
            several=request.several,
            engine_full=self._engine_full,
            ended_s=now_s,
        )
