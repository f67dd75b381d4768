"""One request's life after its decision: the one owner of what it takes and of everything that must be given back.

    admitted -> sent -> served -> ended         (before `sent`, another endpoint may compute its prompt: `core.hop`)
        \\________\\________\\____-> withdrawn

Each step is a method. A step that the present phase does not allow does nothing, so a message that comes twice, late or
in the wrong order changes nothing, and `ended` or `withdraw` may be called whatever happened before. The server and the
simulator drive the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import sub
from typing import Final, Literal

from fairlead.api.usage import Usage
from fairlead.core.endpoint import BY_ROOM, Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.hop import Blame, Hop
from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from fairlead.core.moves import Move
from fairlead.core.observation import Observation
from fairlead.core.placement import Placement
from fairlead.core.policy import Decision, Outcome
from fairlead.core.prefill_decode import TRANSFER_SETUP_MS
from fairlead.core.prefix_index import HeldBefore

Feedback = Callable[[Decision, Outcome, float], None]
Phase = Literal["admitted", "sent", "served", "ended", "withdrawn"]

CLIENT_ERROR: Final = 400
NOT_FOUND: Final = 404
SERVER_ERROR: Final = 500
TIMED_OUT: Final = 504
QUEUE_FULL: Final = (429, 503)
_JUST_NOW_S: Final = 1.0  # before its status came, a stream that the engine refused was seen to be refused
NEARLY_FULL: Final = 0.75  # of a KV cache: the next prompt may find no room
EVICTED_CODE: Final = 429
ABORTED_CODE: Final = 499  # it ended before an engine answered


class InFlight:
    """Made by `Router.admit`, which has taken the load of the chosen endpoint. Times are of the router's clock."""

    __slots__ = (
        "_bound_before",
        "_came_after_tokens",
        "_committed_s",
        "_concurrent_requests",
        "_copy",
        "_decoding_before",
        "_engine_full",
        "_feedback",
        "_first_token_s",
        "_held_before",
        "_in_one_piece",
        "_lost_prefill",
        "_placement",
        "_prefilled_there",
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
        self._first_token_s: float | None = None
        self._decoding_before = ticket.concurrent_requests()
        self._concurrent_requests = self._decoding_before  # at the first token, where it is seen
        self._prefilled_there = ticket.prefilled_there()
        self._came_after_tokens = 0  # until its first token
        self._in_one_piece = False
        self._engine_full = False
        self._lost_prefill = False
        self.was_evicted = False

    @property
    def address(self) -> str:
        """Of the endpoint that has the request, as far as is known."""
        endpoint = self._ticket.endpoint
        return self.decision.addresses[0] if endpoint is None else endpoint.address

    @property
    def load(self) -> Load:
        """What it takes at its endpoint."""
        return self._ticket.load

    def sent(self, request: RequestFacts, now_s: float) -> None:
        """It goes out as `request`, which may be another form of the prompt: what it will leave in the cache counts."""
        if self.phase != "admitted":
            return
        self.phase, self.request, self.sent_s = "sent", request, now_s
        placement, decision = self._placement, self.decision
        self._look_at_engine()
        if request.session is not None:
            self._bound_before = placement.sessions.address_of(request.session)
        binds = not decision.strayed
        self._held_before = placement.commit(request, decision.addresses[0], decision.decided_s, binds=binds)

    def prefilled_elsewhere(self, now_s: float, *, ended: bool = True) -> None:
        """Its KV comes from the hop's endpoint, which has computed its prompt, or does so until `served`."""
        hop = self.hop
        if hop is None or self.phase != "admitted":
            return
        self.from_elsewhere = True
        if ended:
            self._leave_hop(hop, now_s)

    def prefill_failed(self, now_s: float, *, blames: Blame) -> None:
        """Its endpoint computes the prompt after all; `blames` says who is at fault."""
        hop = self.hop
        if hop is None or self.phase != "admitted":
            return
        self.hop = None
        hop.failed(now_s, blames=blames)
        endpoint = self._placement.pool.by_address.get(self.address)
        tokens, cached = self.request.tokens, self.decision.cached_tokens
        self._ticket.recomputes(tokens - cached)
        if endpoint is not None:
            endpoint.prefills.expect(self._ticket, endpoint.speed.prefill_ms(tokens, cached), now_s)

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
        return self.hop is not None and self._first_token_s is None and self.hop.is_silent

    def prefill_came(self, now_s: float) -> None:
        """The endpoint that computes its prompt while it waits at its own has passed it on."""
        if self.hop is not None and self.phase in ("sent", "served"):
            self._leave_hop(self.hop, now_s)

    def prefill_lost(self, now_s: float, *, blames: Blame) -> None:
        """That endpoint will not compute its prompt, so it can only fail, which is no fault of who has it."""
        hop = self.hop
        if hop is None or self.phase not in ("sent", "served"):
            return
        self.hop, self._lost_prefill = None, True
        hop.failed(now_s, blames=blames)

    def _leave_hop(self, hop: Hop, now_s: float) -> None:
        """The prompt is computed there; here only its KV has to come."""
        self.hop = None
        hop.done(now_s)
        endpoint = self._placement.pool.by_address.get(self.address)
        if endpoint is not None:
            endpoint.prefills.expect(self._ticket, 0.0, now_s)

    def claim_copy(self) -> Move | None:
        """The copy of KV that the decision asks for, once: whoever claims it reports to the planner how it ended."""
        move, self._copy = self._copy, None
        return move

    def served(self, address: str, code: int, now_s: float, *, in_one_piece: bool, unanswered: bool = False) -> None:
        """An engine at `address` answered with `code`; the gateway passed over the decision's addresses before it.

        An answer in one piece comes when all of its tokens are there. A full queue is no fault of the engine; of one
        that was passed over the code is not known: there its report tells, or a stream that it refused meanwhile.
        `unanswered`: the code is the gateway's own, as the connection to the engine failed or ended.
        """
        if self.phase != "sent":
            return
        self.phase, self.code, self._in_one_piece = "served", code, in_one_piece
        placement, decision = self._placement, self.decision
        # Where both halves get the request at once, an answer begins before its prompt is computed.
        prefiller: Endpoint | None = None  # that was asked by the engine's own proxy, perhaps in vain
        if self.hop is not None and self.hop.connector != BY_ROOM:
            if code < CLIENT_ERROR:
                self._leave_hop(self.hop, now_s)
            else:
                prefiller = placement.pool.by_address.get(self.hop.address)
                self._drop_hop(now_s)
        failed: list[Endpoint] = []  # that were passed over, and nobody has served it yet
        for tried in decision.addresses:
            if tried == address:
                break
            if self._lost_prefill:  # that one waited for another, which is to blame
                continue
            passed_over = placement.pool.by_address.get(tried)
            if passed_over is None:
                continue
            if passed_over.request_passed_over(now_s):
                continue
            if passed_over.queues or passed_over.refused_s >= self.sent_s:
                passed_over.refused(now_s)
            elif code < CLIENT_ERROR:
                passed_over.request_failed(now_s)
            else:
                failed.append(passed_over)
        endpoint = placement.pool.by_address.get(address)
        if endpoint is None:
            return
        if endpoint.spec.answers_alone and decision.prefill is not None and decision.prefill.else_alone:
            self.from_elsewhere = False
            self._drop_hop(now_s)
        self._ticket.move(endpoint)
        endpoint.request_answered(now_s)
        elsewhere, refused = address != decision.addresses[0], code >= CLIENT_ERROR
        if elsewhere or refused:
            placement.roll_back(self.request, decision.addresses[0], decision.cached_blocks, decision.decided_s)
        if elsewhere and not refused:
            self._committed_s = now_s
            placement.commit(self.request, address, now_s, binds=not decision.strayed)
        if in_one_piece:
            self._ticket.prefilled()
        was_full = code in QUEUE_FULL and endpoint.refused_s >= max(self.sent_s, now_s - _JUST_NOW_S)
        if refused and not unanswered and (was_full or endpoint.refuses(code, now_s)):
            if prefiller is None:
                endpoint.refused(now_s)
            else:  # the queue of one of the two
                prefiller.hops.failed(now_s, placement.cause_of(self.request))
        elif code >= SERVER_ERROR:
            if not self._lost_prefill:
                if not self.from_elsewhere and code != TIMED_OUT:  # else another engine, or its length, may be why
                    placement.prompt_failed(self.request, [*failed, endpoint], self.sent_s, now_s)
                self._failed_at([*failed, endpoint], prefiller, now_s)
                return
        elif code == NOT_FOUND:
            endpoint.models_are_doubted = True
        elif not refused:
            endpoint.served_s = now_s
            endpoint.health.succeeded()
        if failed:
            self._failed_at([*failed, endpoint], prefiller, now_s)

    def _failed_at(self, tried: Sequence[Endpoint], prefiller: Endpoint | None, now_s: float) -> None:
        """It was served by none of those that were `tried`, in this order: they are at fault, or it is.

        So it counts once, against the first of them, and against nobody where one of them serves others. With a
        `prefiller`, which they had to ask, that is what they have in common.
        """
        cause, first = self._placement.cause_of(self.request), tried[0]
        if prefiller is not None:
            prefiller.hops.failed(now_s, cause)
            if len(tried) > 1 or first.health.requests.failures <= prefiller.hops.failures:
                first.health.suspected(now_s, cause)
                return
        if len(tried) == 1 or not any(each.serves(now_s) for each in tried):
            first.request_failed(now_s, cause)

    def unserved(self, code: int) -> None:
        """The gateway answered by itself with `code`: it asked no engine, so none is to blame."""
        if self.phase != "sent":
            return
        self.phase, self.code = "served", code
        decision = self.decision
        self._placement.roll_back(self.request, decision.addresses[0], decision.cached_blocks, decision.decided_s)

    def refused_in_stream(self, code: int, now_s: float) -> None:
        """An answer that began as a success is a refusal: the prompt is not in that engine's cache.

        With 429 or 503 the engine says that its queue is full, which is no fault of the engine.
        """
        if self.phase != "served" or self.code >= CLIENT_ERROR:
            return
        self.code = code
        placement, address = self._placement, self.address
        placement.roll_back(self.request, address, self.decision.cached_blocks, self._committed_s)
        endpoint = placement.pool.by_address.get(address)
        if endpoint is None:
            return
        if code in QUEUE_FULL:
            endpoint.refused(now_s)
        elif code >= SERVER_ERROR and not self._lost_prefill:
            endpoint.request_failed(now_s, placement.cause_of(self.request))

    def evict(self) -> None:
        """Its answer ends now, for a request of a higher priority: it says nothing of the engine."""
        if self.phase == "served":
            self.code, self.was_evicted = EVICTED_CODE, True

    def first_token(self, now_s: float) -> None:
        """The first part of the answer was seen."""
        if self._first_token_s is not None or self.phase not in ("sent", "served"):
            return
        self._first_token_s = now_s
        self._look_at_engine()
        if self._in_one_piece:  # it comes at the end: what others did since it was sent counts
            return
        self._came_after_tokens = self._ticket.came_after_tokens()
        self._ticket.prefilled()
        self._concurrent_requests = self._ticket.concurrent_requests()
        self._prefilled_there = self._ticket.prefilled_there()

    def prefilled(self) -> None:
        """Its prompt is computed, though its first token was not seen."""
        self._ticket.prefilled()

    @property
    def engine_was_away(self) -> bool:
        """Its engine answered no probes for a while since it was sent: what it took then is not the engine's pace."""
        endpoint = self._placement.pool.by_address.get(self.address)
        return endpoint is not None and endpoint.health.away_s >= self.sent_s

    def observation(self, usage: Usage, now_s: float, *, streamed: bool, first_tokens: int = 1) -> Observation:
        """What an answer that was observed in full shows, at its end and before `ended`.

        `first_tokens` came together with the first.
        """
        first_token_s = self._first_token_s if streamed else None
        tokens, attended = map(sub, self._ticket.prefilled_there(), self._prefilled_there)
        if not streamed:
            own = self._ticket.own_prefilled()
            tokens, attended = tokens - own[0], attended - own[1]
        # Else a failed try, or the way of its KV, is in what it took.
        direct = self.address == self.decision.addresses[0] and not self.from_elsewhere
        self._look_at_engine()
        decision, request = self.decision, self.request
        endpoint = self._placement.pool.by_address.get(self.address)
        return Observation(
            address=self.address,
            model=decision.model if endpoint is None else endpoint.model,  # of an adapter, its parent: it is as fast
            estimated_tokens=request.tokens,
            queued_tokens=decision.queued_tokens,
            queued_attended_tokens=decision.queued_attended_tokens,
            came_after_tokens=self._came_after_tokens,
            rtt_ms=decision.rtt_ms,
            first_token_ms=None if first_token_s is None else (first_token_s - self.sent_s) * 1e3,
            first_tokens=first_tokens,
            direct=direct,
            adapter=decision.adapter if direct else None,
            decode_ms=None if first_token_s is None else (now_s - first_token_s) * 1e3,
            concurrent_requests=(self._concurrent_requests + self._ticket.concurrent_requests()) / 2,
            prefilled_tokens=max(0, tokens),
            prefilled_attended_tokens=max(0, attended),
            under_way_tokens=self._under_way_tokens(),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            total_ms=None if streamed else (now_s - self.sent_s) * 1e3,
            expected_cached_tokens=decision.cached_tokens,
            decoding_before=self._decoding_before,
            media=request.media,
            features=request.features,
            several=request.several,
            engine_full=self._engine_full,
            ended_s=now_s,
        )

    def ended(self, now_s: float, seen: Observation | None = None) -> Outcome | None:
        """The request is over, however it went: all that it took is given back. None if it was over before."""
        if self.phase in ("ended", "withdrawn"):
            return None
        address, answered, there = self.address, self.phase == "served", self._ticket.endpoint
        was_sent = self.phase != "admitted"
        self.phase = "ended"
        self._ticket.release(served=answered and self.code < CLIENT_ERROR)
        if self.hop is not None and answered and self.code < CLIENT_ERROR:
            self._leave_hop(self.hop, now_s)
        self._drop_hop(now_s)
        self._drop_copy(now_s)
        endpoint = self._placement.pool.by_address.get(address)
        if endpoint is not there:  # it left the pool, and another engine may have come to its address
            endpoint = None
        if endpoint is not None:
            if answered:
                endpoint.answered_s = now_s
            elif was_sent:
                endpoint.request_abandoned(self.sent_s, self._expected_s(endpoint), now_s)
        if answered and self.code < CLIENT_ERROR:
            if endpoint is not None:
                endpoint.request_served()
            self._answer_ended(address, seen)
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

    def _answer_ended(self, address: str, seen: Observation | None) -> None:
        """All of the prompt is in the cache there now; `seen` says how much of it was before."""
        placement, request = self._placement, self.request
        tokens, reply = (None, None) if seen is None or seen.several else (seen.prompt_tokens, seen.completion_tokens)
        placement.answer_ended(request, address, self._committed_s, tokens, reply)
        if seen is not None and self.from_elsewhere:
            self._learn_transfer(address, seen)
        if seen is not None and seen.direct and seen.prompt_tokens and not seen.several:
            said = placement.learn_cached(request, self.decision, self._held_before, seen.cached_tokens)
            if said and self.decision.credit is None:
                expected_tokens = self.decision.cached_tokens * seen.prompt_tokens / max(1, request.tokens)
                placement.others.answered(seen.prompt_tokens, seen.cached_tokens or 0, expected_tokens)

    def _expected_s(self, endpoint: Endpoint) -> float:
        """From its sending until its prompt is computed, and what waited before that."""
        decision, speed = self.decision, endpoint.speed
        if decision.prefill is not None and decision.prefill.is_split:
            hops = decision.prefill.split
            return (hops.wait_ms + hops.prefill_ms + hops.transfer_ms) / 1e3
        waits = Load(
            pending_prefill_tokens=decision.queued_tokens, pending_attended_tokens=decision.queued_attended_tokens
        )
        return (speed.pending_ms(waits) + speed.prefill_ms(self.request.tokens, decision.cached_tokens)) / 1e3

    def _under_way_tokens(self) -> int:
        endpoint = self._placement.pool.by_address.get(self.address)
        return 0 if endpoint is None else endpoint.prefills.under_way_tokens()

    def _look_at_engine(self) -> None:
        """Notes whether it reports requests that it has no room for: counts kept here do not explain such waits.

        A single waiting request may only await the end of the present step, unless the cache is nearly full.
        """
        endpoint = self._placement.pool.by_address.get(self.address)
        if endpoint is None or endpoint.report.stale:
            return
        report = endpoint.report
        waiting = report.waiting_requests or 0
        if waiting > 1 or (waiting and (report.kv_usage or 0.0) > NEARLY_FULL):
            self._engine_full = True

    def _drop_hop(self, now_s: float) -> None:
        if self.hop is not None:
            self.hop.failed(now_s, blames="nobody")
            self.hop = None

    def _learn_transfer(self, address: str, seen: Observation) -> None:
        """What its first token took is the way of its KV, where nothing else was to be computed there."""
        endpoint, choice = self._placement.pool.by_address.get(address), self.decision.prefill
        if endpoint is None or choice is None or seen.first_token_ms is None or seen.queued_tokens:
            return
        if address != self.decision.addresses[0] or seen.prefilled_tokens:
            return
        speed = endpoint.speed
        steps_ms = seen.first_tokens * speed.decode_ms_per_token * (1 + speed.batch_slowdown * seen.decoding_before)
        tokens = (seen.prompt_tokens or self.request.tokens) - self.decision.cached_tokens
        self._placement.transfers.observe(
            endpoint, tokens, seen.first_token_ms - seen.rtt_ms - steps_ms - TRANSFER_SETUP_MS
        )

    def _drop_copy(self, now_s: float) -> None:
        move = self.claim_copy()
        if move is not None:
            self._placement.planner.ended(move, now_s, "withdrawn")

    def _outcome(self, now_s: float, seen: Observation | None) -> Outcome:
        before_ms = (self.sent_s - self.decision.decided_s) * 1e3 if self.from_elsewhere else 0.0
        total_ms = (now_s - self.sent_s) * 1e3 + before_ms
        if seen is None:
            return Outcome(self.code, total_ms, evicted=self.was_evicted)
        first_token_ms = None if seen.first_token_ms is None else seen.first_token_ms + before_ms
        known = first_token_ms, seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens
        return Outcome(self.code, total_ms, *known)
