"""Load ledger: what the router has sent to each endpoint and not yet seen end.

Counts are taken at the pick, before the engine has answered, and given back by the ticket that took them, so an abort,
a reset and a normal end release exactly what was reserved. What engines report of themselves is not here.
"""

from __future__ import annotations

from typing import Protocol


class Loaded(Protocol):
    """An endpoint, as far as the ledger writes to it."""

    address: str
    inflight_requests: int
    others_inflight_requests: int
    inflight_prompt_tokens: int
    pending_prefill_tokens: int
    prefilled_tokens: int
    decoding_requests: int


class Ticket:
    """The load of one request at one endpoint. Every method may be called again and then does nothing."""

    __slots__ = ("_decoding", "_pending", "_tokens", "endpoint")

    def __init__(self, endpoint: Loaded, prompt_tokens: int, uncached_tokens: int) -> None:
        self._tokens = prompt_tokens
        self._pending = uncached_tokens
        self._decoding = False
        self.endpoint: Loaded | None = None
        self._take(endpoint)

    @property
    def awaits_prefill(self) -> bool:
        return self.endpoint is not None and not self._decoding

    def beside_requests(self) -> int:
        """Other requests at the endpoint now."""
        if self.endpoint is None:
            return 0
        return self.endpoint.inflight_requests + self.endpoint.others_inflight_requests - 1

    def prefilled_there(self) -> int:
        """Tokens of all prompts that were prefilled at the endpoint, as far as is known; grows."""
        return 0 if self.endpoint is None else self.endpoint.prefilled_tokens

    def move(self, endpoint: Loaded) -> None:
        """The gateway served the request elsewhere than at the first choice."""
        if self.endpoint is not None and self.endpoint is not endpoint:
            self._give_back(self.endpoint)
            self._take(endpoint)

    def prefilled(self) -> None:
        """The first token was seen: nothing of the prompt waits any more, and the request decodes."""
        endpoint = self.endpoint
        if endpoint is None or self._decoding:
            return
        endpoint.pending_prefill_tokens -= self._pending
        endpoint.prefilled_tokens += self._pending
        endpoint.decoding_requests += 1
        self._decoding = True

    def release(self) -> None:
        """The request ended, whichever way."""
        if self.endpoint is not None:
            self._give_back(self.endpoint)
            self.endpoint = None

    def _take(self, endpoint: Loaded) -> None:
        endpoint.inflight_requests += 1
        endpoint.inflight_prompt_tokens += self._tokens
        if self._decoding:
            endpoint.decoding_requests += 1
        else:
            endpoint.pending_prefill_tokens += self._pending
        self.endpoint = endpoint

    def _give_back(self, endpoint: Loaded) -> None:
        endpoint.inflight_requests -= 1
        endpoint.inflight_prompt_tokens -= self._tokens
        if self._decoding:
            endpoint.decoding_requests -= 1
        else:
            endpoint.pending_prefill_tokens -= self._pending
