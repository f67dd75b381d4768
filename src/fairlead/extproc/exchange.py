"""One HTTP request and its response: what the stream knows of it, what it has taken, and how that is given back.

The messages that change it are handled in `request_half` and `response_half`; which may come when is in `phases`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from fairlead.admission.eviction import Running
from fairlead.admission.rates import Charge
from fairlead.admission.waiting import Waiting
from fairlead.api import headers as names
from fairlead.api import refusals
from fairlead.api.answer_model import AnswerModel
from fairlead.api.refusals import HttpAnswer
from fairlead.core.blame import CLIENT_ERROR
from fairlead.core.in_flight import ABORTED_CODE, InFlight
from fairlead.core.observation import Observation
from fairlead.core.policy import Ended
from fairlead.core.trace import Trace
from fairlead.edge.grpc.reading import Part
from fairlead.extproc import headers as h
from fairlead.extproc import replies
from fairlead.extproc.observed import ObservedAnswer
from fairlead.extproc.pb.ext_proc_pb2 import BUFFERED, FULL_DUPLEX_STREAMED, BodySendMode, ProcessingRequest
from fairlead.extproc.phases import RequestPhase, ResponsePhase
from fairlead.extproc.pick import Pick
from fairlead.extproc.recorder import Unlearned
from fairlead.extproc.services import Services

Replies = Iterable[replies.Reply]
Send = Callable[[bytes], None]


class Exchange:
    """The state of one request. Whoever makes one calls `withdraw` in the end."""

    # Defaults are on the class, as few change: making an exchange takes a quarter less time than by setting them all.
    request_phase: RequestPhase = "start"
    response_phase: ResponsePhase = "start"
    path = ""  # plain, of a request whose body is read
    body_bytes = 0
    held_bytes = 0  # taken by this stream from what all streams may hold
    subset: Collection[str] | None = None
    is_test = False  # the subset is that of a conformance test, and stays
    request_id = b""
    traceparent = b""  # of the call by which the gateway asks: it counts where the request has none itself
    trace: Trace | None = None  # where its parts are noted; None: nothing is traced
    request_duplex = False
    response_duplex = False
    in_flight: InFlight | None = None
    pick: Pick | None = None
    engine_ms = 0.0  # that it takes, where that counts
    waited_ms = 0.0  # in the queue
    observed: ObservedAnswer | None = None
    seen: Observation | None = None  # what the observed answer said
    seen_events = 0  # of it, that brought tokens
    may_be_refusal = False  # a stream of which nothing was seen yet
    route = ""
    attempts = 1  # that the gateway makes, if it fails
    answer_model: AnswerModel | None = None  # puts the client's name for the model back
    waiting: Waiting | None = None  # in the queue
    level: int | None = None  # of its priority, where that counts
    running: Running | None = None  # its answer is streamed, and may be ended for a higher level
    charge: Charge | None = None  # to the tenant's rate limit, as long as it may change
    prefill: asyncio.Task[None] | None = None  # of its prompt, at another server, while this one answers
    held: Coroutine[Any, Any, Replies] | None = None  # the replies that come later; it raises only its cancellation

    def __init__(self, services: Services, send: Send | None = None) -> None:
        """`send` sends a reply that no message waits for; None: the server cannot."""
        self.services = services
        self.send = send
        self.started_s = services.clock_s()
        self.headers: h.Headers = {}
        self.body: list[Part] = []

    def read_modes(self, message: ProcessingRequest) -> BodySendMode:
        """The send mode of the request's body; the first message carries the modes."""
        if not message.HasField("protocol_config"):
            return BUFFERED
        modes = message.protocol_config
        self.request_duplex = modes.request_body_mode == FULL_DUPLEX_STREAMED
        self.response_duplex = modes.response_body_mode == FULL_DUPLEX_STREAMED
        return modes.request_body_mode

    def refuse(self, answer: HttpAnswer, route: str = "") -> Replies:
        """The reply that answers the client in the engine's place."""
        reply = replies.immediate(answer, ((names.REQUEST_ID, self.request_id),) if self.request_id else ())
        self.forget_body()
        self.give_back_charge()
        self.request_phase = "refused"
        try:
            duration_s = self.services.clock_s() - self.started_s
            self.services.recorder.refused(route, answer, duration_s, self.request_id)
        except Exception:
            self.report_fault()
        return (reply,)

    def end(self) -> None:
        """The request is over: what it took is given back, and it is counted, once."""
        in_flight, services = self.in_flight, self.services
        if in_flight is None:
            return
        self._runs_no_more()
        address, now_s = in_flight.address, services.clock_s()
        outcome = in_flight.ended(now_s, self.seen)
        if outcome is not None and outcome.code < CLIENT_ERROR and in_flight.from_elsewhere:
            self.prefill = None  # its prompt was computed, though who did may say so only now
        self.leave_prefill()
        if outcome is None:
            return
        self.in_flight = None
        self._settle_charge(outcome.code, in_flight.request.tokens)
        if services.charges_tenants:
            self._note_length(in_flight)
        if services.waiting.is_on and outcome.code >= CLIENT_ERROR:
            services.admission.refused(in_flight)
        ended = Ended(
            in_flight.request,
            in_flight.decision,
            outcome,
            address,
            self.request_id,
            self.started_s,
            now_s,
            self.waited_ms,
        )
        services.recorder.ended(self.route, ended)
        services.tracer.ended(ended, self.headers.get(names.TRACEPARENT) or self.traceparent, self.trace)
        if self.pick is not None:
            services.log.add(ended)

    def withdraw(self) -> None:
        """Nothing of it is left behind, unless it has ended already."""
        self.forget_body()
        self.leave_queue()
        self._runs_no_more()
        self.stop_observing()
        self.leave_prefill()
        if self.held is not None:
            self.held.close()
            self.held = None
        if self.in_flight is not None:
            self.in_flight.withdraw(self.services.clock_s())
        else:
            self.give_back_charge()

    def may_be_evicted(self) -> None:
        """Its answer is being streamed."""
        services, in_flight = self.services, self.in_flight
        if self.level is None or self.send is None or in_flight is None or not services.waiting.evicts:
            return
        group = services.admission.lane(in_flight.request.model).group
        self.running = Running(group, self.level, in_flight.address, self._evict)
        services.admission.evictions.add(self.running)

    def _evict(self) -> None:
        """Envoy has sent the status already, so it cuts the answer off, and the engine sees its client leave."""
        if self.in_flight is not None and self.send is not None:
            self.stop_observing()
            self.in_flight.evict()
            self.send(replies.immediate(refusals.evicted()))

    def _runs_no_more(self) -> None:
        if self.running is not None:
            self.services.admission.evictions.remove(self.running)
            self.running = None

    def leave_prefill(self) -> None:
        """Nobody waits for its prompt any more."""
        if self.prefill is not None:
            self.prefill.cancel()
            self.prefill = None

    def leave_queue(self) -> None:
        if self.waiting is not None:
            self.services.waiting.leave(self.waiting)
            self.waiting = None

    def give_back_charge(self) -> None:
        """It did not reach an engine."""
        charge, self.charge = self.charge, None
        if charge is not None:
            self.services.rates.settle(charge, 0.0, 0.0, self.services.clock_s())

    def _settle_charge(self, code: int, prompt_tokens: int) -> None:
        """It has ended. What the engine refused cost nothing; of an answer observed in full the tokens are known.

        Of others what was expected stays, also where the client left early: nobody has counted what it took until then.
        But each event that was seen brought a token at least, so a stream without usage is no way to pay less.
        """
        if code >= CLIENT_ERROR and code != ABORTED_CODE:
            self.give_back_charge()
            return
        charge, seen, self.charge = self.charge, self.seen, None
        if charge is None:
            return
        if seen is not None and seen.prompt_tokens is not None:
            tokens = float(seen.prompt_tokens + (seen.completion_tokens or 0))
        else:
            tokens = max(charge.tokens, float(prompt_tokens + self._events))
        if tokens != charge.tokens:
            self.services.rates.settle(charge, tokens, charge.engine_ms, self.services.clock_s())

    def _note_length(self, in_flight: InFlight) -> None:
        """Of its answer, as far as it was seen, for what its tenant's next ones are charged."""
        tenant = self.services.waiting.naming.tenant(self.headers)
        tokens = None if self.seen is None else self.seen.completion_tokens
        if tenant and (tokens or self._events):
            self.services.admission.answered(in_flight, tenant, tokens or self._events, at_least=not tokens)

    @property
    def _events(self) -> int:
        """That brought tokens, as far as they were seen."""
        return self.seen_events if self.observed is None else self.observed.events

    def stop_observing(self, why: Unlearned = "cut") -> None:
        """What was seen of the answer so far says nothing of the engine."""
        if self.observed is not None:
            self.services.recorder.unlearned[why] += 1
            self.observed.cut()
            self.seen_events = self.observed.events
            self.observed = None

    def give_way(self) -> None:
        """Its body has been coming in for long, and another needs its room."""
        assert self.send is not None
        for reply in self.refuse(refusals.slow_body()):
            assert isinstance(reply, bytes)
            self.send(reply)

    def forget_body(self) -> None:
        self.body = []
        self.services.held.is_here(self)
        if self.held_bytes:
            self.services.held.give_back(self.held_bytes)
            self.held_bytes = 0

    def report_fault(self) -> None:
        """The exception being handled is an internal error: it is counted, and logged later."""
        self.services.recorder.stream_failed(traceback.format_exc(limit=-8))
