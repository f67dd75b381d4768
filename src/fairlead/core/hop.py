"""What a request has at the endpoint that computes its prompt for another: load, and a prompt in its cache soon.

`InFlight` owns it, and gives it back exactly once: by `done` or by `failed`.
"""

from __future__ import annotations

from fairlead.core.blame import Blame, blame_prefiller
from fairlead.core.circumstances import is_full
from fairlead.core.facts import RequestFacts
from fairlead.core.ledger import Ticket
from fairlead.core.observation import Observation
from fairlead.core.placement import Placement
from fairlead.core.prefill_decode import PrefillChoice


class Hop:
    """Takes the load in its constructor. Times are of the router's clock."""

    __slots__ = (
        "_began_s",
        "_choice",
        "_decoding_before",
        "_placement",
        "_queued",
        "_request",
        "_ticket",
        "_was_full",
        "connector",
    )

    def __init__(self, placement: Placement, request: RequestFacts, choice: PrefillChoice, now_s: float) -> None:
        self._placement = placement
        self._request = request
        self._choice = choice
        self._began_s = now_s
        endpoint = placement.pool.by_address[choice.split.prefiller]
        cached = choice.prefiller_cached_tokens
        self.connector = endpoint.spec.kv_connector
        self._queued = endpoint.load
        self._was_full = is_full(endpoint)
        self._ticket = Ticket(endpoint, request.tokens, request.tokens - cached)
        self._decoding_before = self._ticket.concurrent_requests()
        try:
            endpoint.prefills.expect(self._ticket, endpoint.speed.prefill_ms(request.tokens, cached), now_s)
            placement.commit(request, endpoint.address, now_s, binds=False)
        except BaseException:
            self._ticket.release()
            raise

    @property
    def address(self) -> str:
        return self._choice.split.prefiller

    @property
    def expected_ms(self) -> float:
        """From the pick until the prompt is computed."""
        hops = self._choice.split
        return hops.rtt_ms + hops.wait_ms + hops.prefill_ms

    @property
    def is_silent(self) -> bool:
        """Whether its endpoint has answered nobody since the pick."""
        endpoint = self._placement.pool.by_address.get(self.address)
        return endpoint is None or endpoint.answered_s < self._began_s

    def done(self, now_s: float) -> None:
        """It has computed the prompt, and keeps it in its cache."""
        self._ticket.prefilled()
        self._ticket.release()
        endpoint = self._placement.pool.by_address.get(self.address)
        if endpoint is not None:
            endpoint.answered_s = endpoint.served_s = now_s
            endpoint.health.succeeded()
            endpoint.hops.clear()
            endpoint.request_served()

    def failed(self, now_s: float, *, blames: Blame) -> None:
        """It has not, as far as is known."""
        self._ticket.release()
        placement, address = self._placement, self.address
        placement.roll_back(self._request, address, self._choice.prefiller_cached_blocks, self._began_s)
        endpoint = placement.pool.by_address.get(address)
        if endpoint is not None:
            blame_prefiller(endpoint, blames, placement.cause_of(self._request), now_s)

    def observation(self, prompt_tokens: int | None, cached_tokens: int | None, now_s: float) -> Observation:
        """What its answer shows of its speed; before `done`."""
        request = self._request
        endpoint = self._placement.pool.by_address.get(self.address)
        return Observation(
            address=self.address,
            model="" if endpoint is None else endpoint.model,
            estimated_tokens=request.tokens,
            queued_tokens=self._queued.pending_prefill_tokens,
            queued_attended_tokens=self._queued.pending_attended_tokens,
            came_after_tokens=self._ticket.came_after_tokens(),
            rtt_ms=0.0 if endpoint is None else endpoint.rtt_ms,
            first_token_ms=(now_s - self._began_s) * 1e3,  # its only one
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            expected_cached_tokens=self._choice.prefiller_cached_tokens,
            decoding_before=self._decoding_before,
            engine_full=self._was_full or is_full(endpoint),
            ended_s=now_s,
        )
