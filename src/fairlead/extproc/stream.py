"""One HTTP request in Envoy's external-processing protocol: messages in, replies out, no I/O.

    request headers -> [body ...] -> [trailers] -> response headers -> [body ...] -> [trailers] -> end

In BUFFERED mode headers are answered at once and the pick is made on the body. In FULL_DUPLEX_STREAMED mode nothing is
answered until the whole body is here; then headers and body go back together.

Which message may come when is in `phases`, what each does in `request_half` and `response_half`. A message out of order
withdraws what is in flight, and so does an internal error: from then on the request passes unread, and nothing of it is
left behind.

Some replies come later: while a long body is read elsewhere, a request waits for an engine, or an answer is judged.
Then `held` yields them, and Envoy waits. Whoever owns the stream takes it, awaits it or the end of the stream, and
closes it if it is not awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final

from fairlead.api import refusals
from fairlead.api.reserved import may_carry
from fairlead.extproc import replies, request_half, response_half
from fairlead.extproc.exchange import Exchange, Replies
from fairlead.extproc.messages import Message, RequestBody
from fairlead.extproc.pb.ext_proc_pb2 import ProcessingRequest
from fairlead.extproc.phases import REQUEST, RESPONSE, UNSETTLED

_HANDLERS: Final[dict[str, Callable[[Exchange, ProcessingRequest], Replies]]] = {
    "request_headers": request_half.on_headers,
    "request_body": request_half.on_body,
    "request_trailers": request_half.on_trailers,
    "response_headers": response_half.on_headers,
    "response_body": response_half.on_body,
    "response_trailers": response_half.on_trailers,
}
_PASS: Final = {
    "request_headers": replies.REQUEST_HEADERS,
    "request_body": replies.REQUEST_BODY,
    "request_trailers": replies.REQUEST_TRAILERS,
    "response_headers": replies.RESPONSE_HEADERS,
    "response_body": replies.RESPONSE_BODY,
    "response_trailers": replies.RESPONSE_TRAILERS,
}


class Stream(Exchange):
    """`on` takes each message; `close` must follow, whichever way the stream ends.

    Where `on` raised, which nothing that a client sends can cause, `give_up` must get the same message.
    """

    def on(self, message: Message) -> Replies:
        """Replies to one message, in order. A kind that is not known yet changes nothing and has no reply."""
        if isinstance(message, RequestBody):
            if self.request_phase == "collecting":
                return request_half.collect(self, message.extra, message.pieces, has_ended=message.end_of_stream)
            message = message.as_request()
        kind = message.WhichOneof("request")
        if kind in REQUEST:
            is_lawful = self.request_phase in REQUEST[kind]
        elif kind in RESPONSE:
            is_lawful = self.response_phase in RESPONSE[kind]
        else:
            return ()
        return _HANDLERS[kind](self, message) if is_lawful else self._out_of_order(kind, message)

    def close(self) -> None:
        """The stream ended: give its load back and count it, once."""
        try:
            self.end()
        finally:
            self.withdraw()
            self.request_phase = self.response_phase = "over"

    def give_up(self, message: Message) -> Replies:
        """Replies to a message after which the request is no longer ours: it passes, and Envoy's own policy picks.

        A body that may carry a reserved parameter is refused, and so is one that has not arrived in full.
        """
        if isinstance(message, RequestBody):
            message = message.as_request()
        kind, was = message.WhichOneof("request"), self.request_phase
        body = b"".join(self.body) or message.request_body.body
        self.withdraw()
        self.request_phase = "passing" if was == "passing" else "broken"
        self.response_phase = "broken"
        if kind is None:
            return ()
        if was not in UNSETTLED or not kind.startswith("request_"):
            return self._pass(kind, message)
        if not self.request_duplex:
            if kind == "request_body" and may_carry(body):
                return self.refuse(refusals.unreadable())
            return (_PASS[kind],)
        has_ended = message.request_headers.end_of_stream or message.request_body.end_of_stream
        is_whole = has_ended or kind == "request_trailers"
        if was == "reading" or not is_whole or may_carry(body):
            return self.refuse(refusals.unreadable())
        headers = (replies.REQUEST_HEADERS,) if was == "collecting" or kind == "request_headers" else ()
        ends = kind == "request_body"
        streamed = replies.streamed_request_body(body, end_of_stream=ends) if body or ends else ()
        return chain(headers, streamed, (replies.REQUEST_TRAILERS,) if kind == "request_trailers" else ())

    def _out_of_order(self, kind: str, message: ProcessingRequest) -> Replies:
        if kind == "request_body" and self.request_phase != "start" and not message.request_body.body:
            # A second end of stream does no harm; in full duplex the reply must carry it.
            return () if self.request_duplex else (replies.REQUEST_BODY,)
        if "broken" in (self.request_phase, self.response_phase):
            return self._pass(kind, message)
        if self.request_phase == self.response_phase == "start":
            self.read_modes(message)
        self.services.recorder.out_of_order_messages += 1
        return self.give_up(message)

    def _pass(self, kind: str, message: ProcessingRequest) -> Replies:
        """The reply that changes nothing, to a message of a request that is no longer ours."""
        if kind == "request_body":
            part = message.request_body
            if self.request_duplex:
                is_unread = self.request_phase == "passing"
                return replies.streamed_request_body(part.body, end_of_stream=part.end_of_stream) if is_unread else ()
            if may_carry(part.body):
                return self.refuse(refusals.unreadable())
        elif kind == "response_body" and self.response_duplex:
            answer = message.response_body
            return replies.streamed_response_body(answer.body, end_of_stream=answer.end_of_stream)
        return (_PASS[kind],)
