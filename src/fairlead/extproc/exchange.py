"""One HTTP request and its response: what the stream knows of it, what it has taken, and how that is given back.

The messages that change it are handled in `request_half` and `response_half`; which may come when is in `phases`.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Coroutine, Iterable
from typing import Any

from fairlead.admission.waiting import Waiting
from fairlead.api import headers as names
from fairlead.api.answer_model import AnswerModel
from fairlead.api.refusals import HttpAnswer
from fairlead.core.in_flight import InFlight
from fairlead.core.observation import Observation
from fairlead.extproc import headers as h
from fairlead.extproc import replies
from fairlead.extproc.observed import ObservedAnswer
from fairlead.extproc.pb.ext_proc_pb2 import BUFFERED, FULL_DUPLEX_STREAMED, BodySendMode, ProcessingRequest
from fairlead.extproc.phases import RequestPhase, ResponsePhase
from fairlead.extproc.pick import Pick
from fairlead.extproc.services import Services

Replies = Iterable[replies.Reply]


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
    request_duplex = False
    response_duplex = False
    in_flight: InFlight | None = None
    pick: Pick | None = None
    engine_ms = 0.0  # that it takes, where that counts
    waited_ms = 0.0  # in the queue
    observed: ObservedAnswer | None = None
    seen: Observation | None = None  # what the observed answer said
    may_be_refusal = False  # a stream of which nothing was seen yet
    route = ""
    answer_model: AnswerModel | None = None  # puts the client's name for the model back
    waiting: Waiting | None = None  # in the queue
    held: Coroutine[Any, Any, Replies] | None = None  # the replies that come later; it raises only its cancellation

    def __init__(self, services: Services) -> None:
        self.services = services
        self.started_s = services.clock_s()
        self.headers: h.Headers = {}
        self.body: list[bytes] = []

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
        address, now_s = in_flight.address, services.clock_s()
        outcome = in_flight.ended(now_s, self.seen)
        if outcome is None:
            return
        decision = in_flight.decision
        self.in_flight = None
        services.recorder.ended(self.route, decision.model, address, now_s - self.started_s, outcome, self.request_id)
        parent = self.headers.get(names.TRACEPARENT) or self.traceparent
        services.tracer.ended(
            in_flight.request,
            decision,
            outcome,
            address,
            self.request_id,
            parent,
            self.started_s,
            now_s,
            self.waited_ms,
        )
        if self.pick is not None:
            services.log.add(in_flight.request, decision, outcome, address, self.request_id, self.waited_ms)

    def withdraw(self) -> None:
        """Nothing of it is left behind, unless it has ended already."""
        self.forget_body()
        self.leave_queue()
        self.stop_observing()
        if self.held is not None:
            self.held.close()
            self.held = None
        if self.in_flight is not None:
            self.in_flight.withdraw(self.services.clock_s())

    def leave_queue(self) -> None:
        if self.waiting is not None:
            self.services.waiting.leave(self.waiting)
            self.waiting = None

    def stop_observing(self) -> None:
        """What was seen of the answer so far says nothing of the engine."""
        if self.observed is not None:
            self.observed.cut()
            self.observed = None

    def forget_body(self) -> None:
        self.body = []
        if self.held_bytes:
            self.services.held.give_back(self.held_bytes)
            self.held_bytes = 0

    def report_fault(self) -> None:
        """The exception being handled is an internal error: it is counted, and logged later."""
        self.services.recorder.stream_failed(traceback.format_exc(limit=-8))
