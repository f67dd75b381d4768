"""Load ledger: what the router has sent to each endpoint and not yet seen end.

Counts are taken at the pick, before the engine has answered, and given back by the ticket that took them, so an abort,
a reset and a normal end release exactly what was reserved. What engines report of themselves is not here.
"""

from __future__ import annotations

from typing import Final, Protocol

from fairlead.core.adapter_slots import AdapterSlots
from fairlead.core.load import Load
from fairlead.core.prefill_work import attended_tokens

_AWAITED: Final = Load(awaited_requests=1)


class Loaded(Protocol):
    """An endpoint, as far as the ledger writes to it."""

    adapters: AdapterSlots
    address: str
    sent_tokens: int
    prefilled_tokens: int
    prefilled_attended_tokens: int

    @property
    def load(self) -> Load:
        """Its own and its peers'."""
        ...

    def take(self, load: Load) -> None: ...

    def give_back(self, load: Load) -> None: ...

    def prefilled(self, tokens: int, attended: int = 0) -> None: ...

    def not_prefilled(self, tokens: int, attended: int) -> None: ...


class Ticket:
    """The load of one request at one endpoint. Every method may be called again and then does nothing."""

    __slots__ = ("_adapter", "_is_presumed", "_load", "_sent_tokens", "_uncached_tokens", "endpoint", "is_watched")

    def __init__(
        self,
        endpoint: Loaded,
        prompt_tokens: int,
        uncached_tokens: int,
        adapter: str = "",
        *,
        awaits_other: bool = False,
    ) -> None:
        """`uncached_tokens` include what loading the `adapter` is worth, if it must be loaded.

        `awaits_other`: another endpoint computes the prompt first, until `arrived`.
        """
        attended = attended_tokens(prompt_tokens, uncached_tokens)
        self._load = Load(1, prompt_tokens, uncached_tokens, 0, attended, int(awaits_other))
        self._uncached_tokens = uncached_tokens
        self._adapter = adapter
        self._is_presumed = False
        self.is_watched = False  # its first token will be seen: until then it has none, whatever was estimated
        self.endpoint: Loaded | None = endpoint
        endpoint.take(self._load)
        self._sent_tokens = self._sent_to(endpoint)
        if adapter:
            endpoint.adapters.begin(adapter)

    def _sent_to(self, endpoint: Loaded) -> int:
        endpoint.sent_tokens = sent_tokens = endpoint.sent_tokens + self._uncached_tokens
        return sent_tokens

    @property
    def load(self) -> Load:
        """What it takes at its endpoint now, until it is released."""
        return self._load

    @property
    def awaits_prefill(self) -> bool:
        return self.endpoint is not None and not self._load.decoding_requests

    @property
    def is_presumed(self) -> bool:
        """Its prefill counts as done, and nobody has seen that it is."""
        return self._is_presumed and self.endpoint is not None

    @property
    def pending_tokens(self) -> int:
        return self._load.pending_prefill_tokens

    def concurrent_requests(self) -> int:
        """Other requests that decode at the endpoint now, as far as is known."""
        return 0 if self.endpoint is None else self.endpoint.load.decoding_requests - self._load.decoding_requests

    def prefilled_there(self) -> tuple[int, int]:
        """Tokens of all prompts prefilled at the endpoint, as far as is known, and those they attended; both grow."""
        endpoint = self.endpoint
        return (0, 0) if endpoint is None else (endpoint.prefilled_tokens, endpoint.prefilled_attended_tokens)

    def own_prefilled(self) -> tuple[int, int]:
        """Of those, the request's own."""
        load, uncached = self._load, self._uncached_tokens
        return (uncached, attended_tokens(load.inflight_prompt_tokens, uncached)) if load.decoding_requests else (0, 0)

    def came_after_tokens(self) -> int:
        """Of prompts that were sent to the endpoint after this one, the tokens to compute."""
        return 0 if self.endpoint is None else self.endpoint.sent_tokens - self._sent_tokens

    def move(self, endpoint: Loaded) -> None:
        """The gateway served the request elsewhere than at the first choice."""
        if self.endpoint is not None and self.endpoint is not endpoint:
            self._give_back(self.endpoint, served=False)
            self.endpoint = endpoint
            endpoint.take(self._load)
            self._sent_tokens = self._sent_to(endpoint)
            if self._adapter:
                endpoint.adapters.begin(self._adapter)

    def arrived(self) -> None:
        """No other endpoint computes its prompt any more."""
        endpoint, load = self.endpoint, self._load
        if endpoint is not None and load.awaited_requests:
            endpoint.give_back(_AWAITED)
            self._load = load.minus(_AWAITED)

    def prefilled(self, *, presumed: bool = False) -> None:
        """The first token was seen, or is `presumed`: nothing of the prompt waits any more, and the request decodes."""
        self.arrived()
        endpoint, load = self.endpoint, self._load
        if endpoint is None or load.decoding_requests:
            self._is_presumed &= presumed
            return
        self._is_presumed = presumed
        pending, attended = load.pending_prefill_tokens, load.pending_attended_tokens
        endpoint.take(Load(0, 0, -pending, 1, -attended))
        endpoint.prefilled(pending, attended)
        self._load = Load(1, load.inflight_prompt_tokens, 0, 1)

    def waits_after_all(self) -> None:
        """Its prefill was presumed done, and has not begun."""
        endpoint, load = self.endpoint, self._load
        if endpoint is None or not self._is_presumed:
            return
        self._is_presumed, uncached = False, self._uncached_tokens
        attended = attended_tokens(load.inflight_prompt_tokens, uncached)
        endpoint.take(Load(0, 0, uncached, -1, attended))
        endpoint.not_prefilled(uncached, attended)
        self._load = Load(1, load.inflight_prompt_tokens, uncached, 0, attended)

    def recomputes(self, uncached_tokens: int) -> None:
        """So much of the prompt is computed at the endpoint after all, which was to get its KV from another."""
        self.arrived()
        endpoint, load = self.endpoint, self._load
        if endpoint is None or load.decoding_requests:
            return
        attended = attended_tokens(load.inflight_prompt_tokens, uncached_tokens)
        more = uncached_tokens - load.pending_prefill_tokens, 0, attended - load.pending_attended_tokens
        endpoint.take(Load(0, 0, *more))
        self._uncached_tokens = uncached_tokens
        self._load = Load(1, load.inflight_prompt_tokens, uncached_tokens, 0, attended)

    def release(self, *, served: bool = False) -> None:
        """The request ended, whichever way; `served` if the engine answered it."""
        if self.endpoint is not None:
            self._give_back(self.endpoint, served=served)
            self.endpoint = None

    def _give_back(self, endpoint: Loaded, *, served: bool) -> None:
        endpoint.give_back(self._load)
        if self._adapter:
            endpoint.adapters.end(self._adapter, served=served)
