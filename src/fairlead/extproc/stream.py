"""One HTTP request as Envoy's external-processing protocol tells it: messages in, replies out, no I/O.

    request headers -> [body ...] -> [trailers] -> response headers -> [body ...] -> [trailers] -> end

In BUFFERED mode headers are answered at once and the pick is made on the body. In FULL_DUPLEX_STREAMED mode nothing is
answered until the whole body is here; then headers and body go back together. A path that is not a generation API is
picked on its headers and its body passes unread.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from itertools import cycle, islice
from typing import Final

from fairlead.cascade.serving.route import Entry
from fairlead.core.feedback import Outcome
from fairlead.core.learning import Observation
from fairlead.core.prompt import generation_path
from fairlead.core.router import Decision, Refusal
from fairlead.extproc import headers as h
from fairlead.extproc import refusals, replies
from fairlead.extproc.cascade import Held, wait_for
from fairlead.extproc.models import models_answer
from fairlead.extproc.observed import EVENT_STREAM, ObservedAnswer
from fairlead.extproc.pb.ext_proc_pb2 import BUFFERED, FULL_DUPLEX_STREAMED, ProcessingRequest
from fairlead.extproc.pick import Pick, Refused, Shared, pick
from fairlead.extproc.refusals import HttpAnswer

HTTP_OK: Final = 200
CLIENT_ERROR: Final = 400
SERVER_ERROR: Final = 500
ABORTED_CODE: Final = 499  # the stream ended before the engine answered
_PASS: Final = {
    "request_headers": replies.REQUEST_HEADERS,
    "request_body": replies.REQUEST_BODY,
    "request_trailers": replies.REQUEST_TRAILERS,
    "response_headers": replies.RESPONSE_HEADERS,
    "response_body": replies.RESPONSE_BODY,
    "response_trailers": replies.RESPONSE_TRAILERS,
}
Replies = Iterable[bytes]


class Stream:
    """The state of one request. `on` takes each message; `close` must follow, whichever way the stream ends."""

    # Of the class, as most stay as they are: a stream is made in a quarter less time than by setting them all.
    _path: str | None = None  # of a generation API; None: the body passes unread
    _body_bytes = 0
    _subset: Collection[str] | None = None
    _request_id = b""
    _request_duplex = False
    _response_duplex = False
    _settled = False  # the request's headers and body have been answered
    _ended = False
    _decision: Decision | None = None
    _pick_made: Pick | None = None
    _observed: ObservedAnswer | None = None
    _seen: Observation | None = None  # what the observed answer said
    _route = ""
    _code = ABORTED_CODE
    _holding: Entry | None = None  # the answer's body is for a judge
    held: Held | None = None  # until it is settled, Envoy waits

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._started_s = self._picked_s = shared.clock_s()
        self._headers: h.Headers = {}
        self._body: list[bytes] = []

    def on(self, message: ProcessingRequest) -> Replies:
        """Replies to one message, in order. Raises nothing that a client could cause."""
        kind = message.WhichOneof("request")
        if kind == "request_body":
            return self._on_request_body(message)
        if kind == "request_headers":
            return self._on_request_headers(message)
        if kind == "response_headers":
            return self._on_response_headers(message)
        if kind == "response_body":
            return self._on_response_body(message)
        if kind == "request_trailers":
            return self._on_request_trailers()
        if kind == "response_trailers":
            self.close()
            return (replies.RESPONSE_TRAILERS,)
        return ()

    def close(self) -> None:
        """The request ended: give its load back and count it, once."""
        decision = self._decision
        if self._ended or decision is None:
            return
        self._ended = True
        endpoint = decision.ticket.endpoint
        decision.ticket.release()
        address = endpoint.address if endpoint is not None else decision.addresses[0]
        now_s = self._shared.clock_s()
        served = self._shared.router.pool.by_address.get(address)
        if served is not None:
            if self._code == ABORTED_CODE:
                served.request_abandoned(self._picked_s, now_s)
            else:
                served.answered_s = now_s
        self._shared.recorder.ended(self._route, decision.model, address, self._code, now_s - self._started_s)
        router, log, picked = self._shared.router, self._shared.recorder.log, self._pick_made
        if router.tuner is not None or log is not None:
            outcome = self._outcome(now_s)
            router.feedback(decision, outcome, now_s)
            if log is not None and picked is not None:
                log.add(picked.request, decision, outcome, address, self._request_id)

    def _outcome(self, now_s: float) -> Outcome:
        total_ms, seen = (now_s - self._picked_s) * 1e3, self._seen
        if seen is None:
            return Outcome(self._code, total_ms)
        known = seen.first_token_ms, seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens
        return Outcome(self._code, total_ms, *known)

    def pass_on(self, message: ProcessingRequest) -> Replies:
        """Replies that change nothing, for when `on` raised: Envoy's fallback policy picks, and the request flows."""
        kind = message.WhichOneof("request")
        if kind is None:
            return ()
        if kind == "response_body" and self._response_duplex:
            return self._on_response_body(message)
        if not self._request_duplex or self._settled or not kind.startswith("request_"):
            return (_PASS[kind],)
        self._settled = True
        self._path = None
        if kind == "request_headers":
            return (replies.REQUEST_HEADERS,)
        ended = kind == "request_body" and message.request_body.end_of_stream
        body = replies.streamed_request_body(b"".join(self._body), end_of_stream=ended)
        return (replies.REQUEST_HEADERS, *body, *((replies.REQUEST_TRAILERS,) if kind == "request_trailers" else ()))

    # ---- request ------------------------------------------------------------------------------------------------

    def _on_request_headers(self, message: ProcessingRequest) -> Replies:
        headers = self._headers = h.read(message.request_headers.headers)
        self._subset = h.subset_hint(message)
        self._request_id = headers.get(h.REQUEST_ID) or uuid.uuid4().hex.encode()
        body_mode = BUFFERED
        if message.HasField("protocol_config"):
            body_mode = message.protocol_config.request_body_mode
            self._request_duplex = body_mode == FULL_DUPLEX_STREAMED
            self._response_duplex = message.protocol_config.response_body_mode == FULL_DUPLEX_STREAMED
        path = headers.get(b":path", b"").decode("latin-1")
        if headers.get(b":method") == b"POST":
            self._path = generation_path(path)
        elif (answer := models_answer(path, self._shared.router.pool)) is not None:
            return self._refuse(answer)
        if self._path is not None and body_mode in (BUFFERED, FULL_DUPLEX_STREAMED):
            if message.request_headers.end_of_stream:
                return self._refuse(refusals.malformed("The request has no body; send JSON", None))
            return () if self._request_duplex else (replies.REQUEST_HEADERS,)
        self._path = None
        return self._pick_unread()

    def _on_request_body(self, message: ProcessingRequest) -> Replies:
        part = message.request_body
        if self._path is None and self._request_duplex:
            return replies.streamed_request_body(part.body, end_of_stream=part.end_of_stream)
        if self._settled:  # a second end of stream: in duplex mode it is ours to tell, and was told
            return () if self._request_duplex else (replies.REQUEST_BODY,)
        read = part.body  # each look at it is a copy
        self._body.append(read)
        self._body_bytes += len(read)
        if self._body_bytes > self._shared.max_body_bytes:
            return self._refuse(refusals.too_large(self._shared.max_body_bytes))
        if self._subset is None:
            self._subset = h.subset_hint(message)
        if part.end_of_stream:
            return self._pick(end_of_stream=True)
        return () if self._request_duplex else (replies.REQUEST_BODY,)

    def _on_request_trailers(self) -> Replies:
        if self._settled or not self._request_duplex:
            return (replies.REQUEST_TRAILERS,)
        answers = self._pick(end_of_stream=False)
        return answers if self._decision is None else (*answers, replies.REQUEST_TRAILERS)

    def _pick(self, *, end_of_stream: bool) -> Replies:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        picked = pick(
            self._shared, self._path or "", self._headers, self._request_id, body, self._subset,
            can_hold=not self._request_duplex,
        )  # fmt: skip
        self._body = []
        if isinstance(picked, Refused):
            return self._refuse(picked.answer, picked.route)
        self._pick_made = picked
        self._picked_s = self._shared.clock_s()
        destination, headers = self._settle(picked.decision, picked.route)
        removed = h.forbidden_in(self._headers)
        if self._request_duplex:
            whole = body if picked.body is None else picked.body
            streamed = replies.streamed_request_body(whole, end_of_stream=end_of_stream)
            return (replies.routed_headers(destination, headers, removed), *streamed)
        if picked.body is not None:
            headers.append((b"content-length", str(len(picked.body)).encode()))
        return (replies.routed_body(destination, headers, removed, picked.body),)

    def _pick_unread(self) -> Replies:
        decision = self._shared.router.decide_unread(self._subset)
        if isinstance(decision, Refusal):
            return self._refuse(refusals.no_endpoint())
        destination, headers = self._settle(decision, "")
        removed = h.forbidden_in(self._headers)
        return (replies.routed_headers(destination, headers, removed, skip_body=not self._request_duplex),)

    def _settle(self, decision: Decision, route: str) -> tuple[str, list[replies.Header]]:
        """Keep the decision; the destination to announce, and the further headers to set on the request."""
        self._settled = True
        self._decision = decision
        self._route = route
        # Past the end of a short list Envoy would go on with any engine, perhaps of another model: repeat the list.
        addresses, wanted = decision.addresses, 1 + self._shared.router.fallbacks
        destination = ",".join(addresses if len(addresses) == wanted else islice(cycle(addresses), wanted))
        return destination, [] if self._headers.get(h.REQUEST_ID) else [(h.REQUEST_ID, self._request_id)]

    def _refuse(self, answer: HttpAnswer, route: str = "") -> Replies:
        self._settled = True
        self._body = []
        self._shared.recorder.ended(route, "", "", answer.status, self._shared.clock_s() - self._started_s)
        return (replies.immediate(answer, ((h.REQUEST_ID, self._request_id),)),)

    # ---- response -----------------------------------------------------------------------------------------------

    def _on_response_headers(self, message: ProcessingRequest) -> Replies:
        decision = self._decision
        if decision is None:
            return (replies.RESPONSE_HEADERS,)
        code, content_type = h.status_and_type(message.response_headers.headers)
        self._code = code or ABORTED_CODE
        address = h.served_address(message) or decision.addresses[0]
        self._note_outcome(decision, address, content_type)
        ended = message.response_headers.end_of_stream
        if ended:
            self.close()
        why = decision.why if address == decision.addresses[0] else "fallback"
        reuse = b"" if self._pick_made is None else self._pick_made.reuse
        if code == HTTP_OK and not ended and self._holds(message):
            return (replies.held_response_headers(decision.model, address, why, self._request_id, reuse),)
        observe = code == HTTP_OK and not ended and self._starts_observing(content_type)
        observe = observe and not self._response_duplex
        return (replies.response_headers(decision.model, address, why, self._request_id, observe=observe, reuse=reuse),)

    def _holds(self, message: ProcessingRequest) -> bool:
        """Whether the answer is for a judge, who may take his time."""
        picked, cascades = self._pick_made, self._shared.cascades
        if picked is None or picked.entry is None or cascades is None:
            return False
        if cascades.holds(picked.entry, h.read(message.response_headers.headers)):
            self._holding = picked.entry
        return self._holding is not None

    def _note_outcome(self, decision: Decision, address: str, content_type: bytes) -> None:
        """Tell the endpoints how the request went: Envoy passed over those before the one that served."""
        pool, now_s = self._shared.router.pool, self._shared.clock_s()
        for tried in decision.addresses:
            if tried == address:
                break
            failed = pool.by_address.get(tried)
            if failed is not None:
                failed.request_failed(now_s)
        served = pool.by_address.get(address)
        if served is None:
            return
        decision.ticket.move(served)
        served.answered_s = now_s
        elsewhere = address != decision.addresses[0]
        if self._pick_made is not None and (elsewhere or self._code >= SERVER_ERROR):
            self._shared.router.never_came(self._pick_made.request, decision)
        if elsewhere and self._pick_made is not None:
            self._shared.router.commit(self._pick_made.request, address, now_s, binds=not decision.strayed)
        if not content_type.startswith(EVENT_STREAM):  # an answer in one piece comes when all its tokens are there
            decision.ticket.prefilled()
        if self._code >= SERVER_ERROR:
            served.request_failed(now_s)
        elif self._code < CLIENT_ERROR:
            served.request_succeeded()

    def _starts_observing(self, content_type: bytes) -> bool:
        """A sample of answers is observed in full, as far as the budget of messages reaches."""
        picked = self._pick_made
        if picked is None or not self._shared.budget.open(self._shared.clock_s()):
            return False
        self._observed = ObservedAnswer(picked, self._picked_s, content_type)
        return True

    def _on_response_body(self, message: ProcessingRequest) -> Replies:
        part = message.response_body
        if self._holding is not None:
            # The first model is done, whatever is done with its answer.
            self.held = Held(self._holding, self._headers, self._request_id, part.body, self._started_s)
            self._holding = None
            self.close()
            return (wait_for(self.held),)
        observed = self._observed
        if observed is not None:
            shared = self._shared
            now_s = shared.clock_s()
            shared.budget.spend()
            observed.part(part.body, now_s)
            if part.end_of_stream:
                self._observed = None
                self._seen = seen = observed.ended(now_s)
                shared.learner.observe(seen, shared.router.pool)
                shared.recorder.observed(seen)
        if part.end_of_stream:
            self.close()
        if self._response_duplex:
            return replies.streamed_response_body(part.body, end_of_stream=part.end_of_stream)
        return (replies.RESPONSE_BODY,)
