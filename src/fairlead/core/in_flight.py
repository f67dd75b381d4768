"""One request's life after its decision: the one owner of what it takes and of everything that must be given back.

    admitted -> sent -> served -> ended         (before `sent`, another endpoint may compute its prompt: `core.hop`)
        \\________\\________\\____-> withdrawn

Each step is a method. A step that the present phase does not allow does nothing, so a message that comes twice, late or
in the wrong order changes nothing, and `ended` or `withdraw` may be called whatever happened before. The server and the
simulator drive the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final, Literal

from fairlead.api.usage import Usage
from fairlead.core.blame import (
    CLIENT_ERROR,
    SERVER_ERROR,
    TIMED_OUT,
    Blame,
    Failure,
    blame_abandoned,
    blame_passed_over,
)
from fairlead.core.circumstances import Circumstances
from fairlead.core.endpoint import BY_ROOM, Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.hop import Hop
from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from fairlead.core.moves import Move
from fairlead.core.observation import Observation
from fairlead.core.placement import Placement
from fairlead.core.policy import Decision, Outcome
from fairlead.core.prefix_index import HeldBefore
from fairlead.core.suspects import Lost

Feedback = Callable[[Decision, Outcome, float], None]
Phase = Literal["admitted", "sent", "served", "ended", "withdrawn"]

EVICTED_CODE: Final = 429
ABORTED_CODE: Final = 499  # it ended before an engine answered


class InFlight:
    """Made by `Router.admit`, which has taken the load of the chosen endpoint. Times are of the router's clock."""

    __slots__ = (
        "_bound_before",
        "_circumstances",
        "_committed_s",
        "_copy",
        "_feedback",
        "_held_before",
        "_in_one_piece",
        "_lost_prefill",
        "_placement",
        "_ticket",
        "code",
        "decision",
        "from_elsewhere",
        "hop",
        "phase",
        "request",
        "sent_s",
        "was_evicted",
    )

    def __init__(
        self,
        placement: Placement,
        feedback: Feedback,
        request: RequestFacts,
        decision: Decision,
        ticket: Ticket,
        hop: Hop | None = None,
    ) -> None:
        self.hop = hop  # what it has at another endpoint, which computes its prompt; None: nothing, or no longer
        self.from_elsewhere = False  # its KV came from there
        self.request = request  # as it is sent, from `sent` on
        self.decision = decision
        self.phase: Phase = "admitted"
        self.code = ABORTED_CODE  # until an engine answers
        self.sent_s = decision.decided_s
        self._placement = placement
        self._feedback = feedback
        self._ticket = ticket
        self._bound_before: str | None = None
        self._committed_s = decision.decided_s
        self._held_before: Sequence[HeldBefore] = ()
        move = decision.migration
        self._copy = move if isinstance(move, Move) and not move.redirects else None
        self._circumstances = Circumstances(ticket)
        self._in_one_piece = False
        self._lost_prefill = False
        self.was_evicted = False

    @property
    def address(self) -> str:
        """Of the endpoint that has the request, as far as is known."""
        endpoint = self._ticket.endpoint
        return self.decision.addresses[0] if endpoint is None else endpoint.address

    @property
    def endpoint(self) -> Endpoint | None:
        """The same, unless it has left the pool."""
        return self._placement.pool.by_address.get(self.address)

    @property
    def load(self) -> Load:
        """What it takes at its endpoint."""
        return self._ticket.load

    def prefilled_elsewhere(self, now_s: float, *, ended: bool = True) -> None:
        """Its KV comes from the hop's endpoint, which has computed its prompt, or does so until `served`."""
        if self.hop is None or self.phase != "admitted":
            return
        self.from_elsewhere = True
        if ended:
            self._leave_hop(now_s)

    def prefill_failed(self, now_s: float, *, blames: Blame) -> None:
        """Its endpoint computes the prompt after all; `blames` says who is at fault."""
        if self.hop is None or self.phase != "admitted":
            return
        self._drop_hop(now_s, blames=blames)
        tokens, cached = self.request.tokens, self.decision.cached_tokens
        self._ticket.recomputes(tokens - cached)
        if (endpoint := self.endpoint) is not None:
            endpoint.prefills.expect(self._ticket, endpoint.speed.prefill_ms(tokens, cached), now_s)

    def claim_copy(self) -> Move | None:
        """The copy of KV that the decision asks for, once: whoever claims it reports to the planner how it ended."""
        move, self._copy = self._copy, None
        return move

    def sent(self, request: RequestFacts, now_s: float, *, streams: bool = False) -> None:
        """It goes out as `request`, which may be another form of the prompt: what it will leave in the cache counts.

        A stream has no first token before `served`.
        """
        if self.phase != "admitted":
            return
        self._ticket.is_watched = streams
        self.phase, self.request, self.sent_s = "sent", request, now_s
        placement, decision = self._placement, self.decision
        self._circumstances.look_at(placement.pool.by_address.get(decision.addresses[0]))
        if request.session is not None:
            self._bound_before = placement.sessions.address_of(request.session)
        binds = not decision.strayed
        self._held_before = placement.commit(request, decision.addresses[0], decision.decided_s, binds=binds)

    @property
    def is_over(self) -> bool:
        """It has ended, with an answer or without."""
        return self.phase == "ended"

    @property
    def may_be_at(self) -> Sequence[str]:
        """Addresses where it may wait for its prompt: until one answers, the gateway may try each that it was given.

        What it does at an endpoint that answers alone waits for nobody.
        """
        if self.phase == "served":
            return (self.address,)
        by_address = self._placement.pool.by_address
        tried = dict.fromkeys(self.decision.addresses)
        return [each for each in tried if each in by_address and not by_address[each].spec.answers_alone]

    @property
    def prefiller_is_silent(self) -> bool:
        """The endpoint that computes its prompt has answered nobody since, and no part of its answer was seen."""
        return self.hop is not None and self._circumstances.first_token_s is None and self.hop.is_silent

    def prefill_came(self, now_s: float) -> None:
        """The endpoint that computes its prompt while it waits at its own has passed it on."""
        if self.phase in ("sent", "served"):
            self._leave_hop(now_s)

    def prefill_lost(self, now_s: float, *, blames: Blame) -> None:
        """That endpoint will not compute its prompt, so it can only fail, which is no fault of who has it."""
        if self.hop is not None and self.phase in ("sent", "served"):
            self._lost_prefill = True
            self._drop_hop(now_s, blames=blames)

    def served(
        self,
        address: str,
        code: int,
        now_s: float,
        *,
        in_one_piece: bool,
        unanswered: bool = False,
        attempts: int = 1,
    ) -> None:
        """An engine at `address` answered with `code`; the gateway passed over the decision's addresses before it.

        An answer in one piece comes when all of its tokens are there. `unanswered`: the code is the gateway's own, as
        the connection to the engine failed or ended. `attempts` are as many as it makes at a request that fails, going
        through a short list again: so the first address may be the last that it tried.
        """
        if self.phase != "sent":
            return
        self.phase, self.code, self._in_one_piece = "served", code, in_one_piece
        self._ticket.is_watched = False
        placement, decision = self._placement, self.decision
        by_address, first, was_served = placement.pool.by_address, decision.addresses[0], code < CLIENT_ERROR
        prefiller: Endpoint | None = None  # that was asked by the engine's own proxy, perhaps in vain
        # Where both halves get the request at once, an answer begins before its prompt is computed.
        if self.hop is not None and self.hop.connector != BY_ROOM:
            if was_served:
                self._leave_hop(now_s)
            else:
                prefiller = by_address.get(self.hop.address)
                self._drop_hop(now_s)
        unserved_at: Sequence[Endpoint] = ()
        passed_over: Iterable[str] = ()
        if address != first:
            passed_over = takewhile(address.__ne__, decision.addresses)
        elif code >= SERVER_ERROR and (attempts - 1) % len(decision.addresses) == 0:
            passed_over = decision.addresses[1 : attempts - 1]
        if passed_over and not self._lost_prefill:  # else they waited for another, which is to blame
            before = [by_address[each] for each in passed_over if each in by_address]
            unserved_at = blame_passed_over(before, self.sent_s, now_s, was_served=was_served)
        endpoint = by_address.get(address)
        if endpoint is None:
            return
        if endpoint.spec.answers_alone and decision.prefill is not None and decision.prefill.else_alone:
            self.from_elsewhere = False
            self._drop_hop(now_s)
        self._ticket.move(endpoint)
        if address != first and self._ticket.awaits_prefill:
            tokens, pending = self.request.tokens, self._ticket.pending_tokens
            endpoint.prefills.expect(self._ticket, endpoint.speed.prefill_ms(tokens, tokens - pending), now_s)
        endpoint.request_answered(now_s)
        if address != first or not was_served:
            placement.roll_back(self.request, first, decision.cached_blocks, decision.decided_s)
        if address != first and was_served:
            self._committed_s = now_s
            placement.commit(self.request, address, now_s, binds=not decision.strayed)
        if in_one_piece:
            self._ticket.prefilled()
        if was_served:
            endpoint.served_s = now_s
            endpoint.health.succeeded()
        else:
            failure, tried = self._failure(now_s, unanswered=unanswered), [*unserved_at, endpoint]
            if failure.is_of(endpoint) and not self.from_elsewhere and code != TIMED_OUT:  # else its length may be why
                placement.prompt_failed(self.request, tried, self.sent_s, now_s)
            failure.blame(tried, prefiller)

    def unserved(self, code: int) -> None:
        """The gateway answered by itself with `code`: it asked no engine, so none is to blame."""
        if self.phase != "sent":
            return
        self.phase, self.code = "served", code
        decision = self.decision
        self._placement.roll_back(self.request, decision.addresses[0], decision.cached_blocks, decision.decided_s)

    def first_token(self, now_s: float) -> None:
        """The first part of the answer was seen."""
        seen = self._circumstances
        if seen.first_token_s is not None or self.phase not in ("sent", "served"):
            return
        endpoint = self.endpoint
        seen.first_token_s = now_s
        seen.look_at(endpoint)
        if self._in_one_piece:  # it comes at the end: what others did since it was sent counts
            return
        seen.waited()
        self._ticket.prefilled()
        seen.decodes()
        if endpoint is not None:
            endpoint.prefills.seen(self._ticket, now_s)

    def watch(self) -> None:
        """It is answered by a stream whose first token will be seen."""
        self._ticket.is_watched = self.phase == "served"

    def look_away(self) -> None:
        """What comes of its stream is not seen any more, or does not tell its tokens."""
        self._ticket.is_watched = False

    def prefilled(self) -> None:
        """Its prompt is computed, though its first token was not seen."""
        self._ticket.prefilled()

    def refused_in_stream(self, code: int, now_s: float) -> None:
        """An answer that began as a success is a refusal: the prompt is not in that engine's cache."""
        if self.phase != "served" or self.code >= CLIENT_ERROR:
            return
        self.code = code
        self._placement.roll_back(self.request, self.address, self.decision.cached_blocks, self._committed_s)
        if (endpoint := self.endpoint) is not None:
            self._failure(now_s).blame_in_stream(endpoint)

    def evict(self) -> None:
        """Its answer ends now, for a request of a higher priority: it says nothing of the engine."""
        if self.phase == "served":
            self.code, self.was_evicted = EVICTED_CODE, True

    def observation(self, usage: Usage, now_s: float, *, streamed: bool, first_tokens: int = 1) -> Observation:
        """What an answer that was observed in full shows, at its end and before `ended`.

        `first_tokens` came together with the first.
        """
        return self._circumstances.observation(self, usage, now_s, streamed=streamed, first_tokens=first_tokens)

    def ended(self, now_s: float, seen: Observation | None = None) -> Outcome | None:
        """The request is over, however it went: all that it took is given back. None if it was over before."""
        if self.phase in ("ended", "withdrawn"):
            return None
        address, there = self.address, self._ticket.endpoint
        was_sent, answered = self.phase != "admitted", self.phase == "served"
        was_served = answered and self.code < CLIENT_ERROR
        self.phase = "ended"
        self._ticket.release(served=was_served)
        if self.hop is not None and was_served:
            self._leave_hop(now_s)
        elif self.hop is not None:
            self._drop_hop(now_s)
        self._drop_copy(now_s)
        placement = self._placement
        endpoint = placement.pool.by_address.get(address)
        if endpoint is not None and endpoint is there:  # else another engine may have come to its address
            if answered:
                endpoint.answered_s = now_s
            elif was_sent:
                blame_abandoned(endpoint, self.request, self.decision, self.sent_s, now_s)
            if was_served:
                endpoint.request_served()
                self._committed_s = placement.used(self.request, endpoint, self._committed_s, now_s)
        if was_served:
            is_whole = self._in_one_piece or (seen is not None and bool(seen.completion_tokens))
            placement.answer_ended(self.request, address, self._committed_s, seen, is_whole=is_whole)
            if endpoint is not None and not is_whole and self.request.cause:
                endpoint.stream_ends.ended(placement, self._lost(), endpoint, now_s)
            if seen is not None:
                placement.learn(self.request, self.decision, self._held_before, seen)
        outcome = self._outcome(now_s, seen)
        self._feedback(self.decision, outcome, now_s)
        return outcome

    def withdraw(self, now_s: float) -> None:
        """It goes nowhere after all, or its end will not be seen: everything is rolled back and no engine is blamed."""
        if self.phase in ("ended", "withdrawn"):
            return
        was_sent, self.phase = self.phase == "sent", "withdrawn"
        address = self.address
        self._ticket.release()
        self._drop_hop(now_s)
        self._drop_copy(now_s)
        if not was_sent:
            return
        placement, request = self._placement, self.request
        placement.roll_back(request, address, self.decision.cached_blocks, self.decision.decided_s)
        if request.session is not None and self._bound_before in placement.pool.by_address:
            placement.sessions.flip(request.session, address, self._bound_before, now_s)

    def _leave_hop(self, now_s: float) -> None:
        """The prompt is computed there, if it has one; here only its KV has to come."""
        hop, self.hop = self.hop, None
        if hop is not None:
            self._ticket.arrived()
            hop.done(now_s)
            if (endpoint := self.endpoint) is not None:
                endpoint.prefills.expect(self._ticket, 0.0, now_s)

    def _drop_hop(self, now_s: float, *, blames: Blame = "nobody") -> None:
        hop, self.hop = self.hop, None
        if hop is not None:
            self._ticket.arrived()
            hop.failed(now_s, blames=blames)

    def _drop_copy(self, now_s: float) -> None:
        move = self.claim_copy()
        if move is not None:
            self._placement.planner.ended(move, now_s, "withdrawn")

    def _failure(self, now_s: float, *, unanswered: bool = False) -> Failure:
        cause = self._placement.cause_of(self.request)
        return Failure(self.code, cause, self.sent_s, now_s, self._lost_prefill, unanswered)

    def _lost(self) -> Lost:
        """In case its engine dies now."""
        request, turn = self.request, self.request.turn
        return Lost((request.model, request.cause), None if turn is None else turn.key, self.sent_s)

    def _outcome(self, now_s: float, seen: Observation | None) -> Outcome:
        before_ms = (self.sent_s - self.decision.decided_s) * 1e3 if self.from_elsewhere else 0.0
        total_ms = (now_s - self.sent_s) * 1e3 + before_ms
        if seen is None:
            return Outcome(self.code, total_ms, evicted=self.was_evicted)
        first_token_ms = None if seen.first_token_ms is None else seen.first_token_ms + before_ms
        known = first_token_ms, seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens
        return Outcome(self.code, total_ms, *known)
