"""Load ledger: what the router has sent to each endpoint and not yet seen end.

Counts are taken at the pick, before the engine has answered, and given back by the ticket that took them, so an abort,
a reset and a normal end release exactly what was reserved. What engines report of themselves is not here.
"""

from __future__ import annotations

from fairlead.core.pool import Endpoint


class Ticket:
    """The load of one request at one endpoint. Every method may be called again and then does nothing."""

    __slots__ = ("_pending", "_tokens", "endpoint")

    def __init__(self, endpoint: Endpoint, prompt_tokens: int, uncached_tokens: int) -> None:
        self._tokens = prompt_tokens
        self._pending = uncached_tokens
        self.endpoint: Endpoint | None = None
        self._take(endpoint)

    def _take(self, endpoint: Endpoint) -> None:
        endpoint.inflight_requests += 1
        endpoint.inflight_prompt_tokens += self._tokens
        endpoint.pending_prefill_tokens += self._pending
        self.endpoint = endpoint

    def move(self, endpoint: Endpoint) -> None:
        """The gateway served the request elsewhere than at the first choice."""
        if self.endpoint is None or self.endpoint is endpoint:
            return
        pending = self._pending
        self.release()
        self._pending = pending
        self._take(endpoint)

    def prefilled(self) -> None:
        """The first token was seen: nothing of the prompt waits any more."""
        if self.endpoint is not None:
            self.endpoint.pending_prefill_tokens -= self._pending
            self._pending = 0

    def release(self) -> None:
        """The request ended, whichever way."""
        endpoint = self.endpoint
        if endpoint is None:
            return
        self.prefilled()
        endpoint.inflight_requests -= 1
        endpoint.inflight_prompt_tokens -= self._tokens
        self.endpoint = None
