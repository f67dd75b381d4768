"""An engine's streamed answer, held until its first event is here: a refusal gets the status that it should have had.

SGLang sends the headers of a stream before it knows whether its queue has room, and Envoy retries by the status alone.
So for an engine whose queue is limited, the Envoy that `fairlead envoy` configures asks the sidecar at each attempt,
from a filter behind its router: headers, and parts of the body without waiting for replies. After the first part the
call ends, unless it was a refusal, and the rest of the answer goes its way without the sidecar.

    response headers -> [first part] -> over
                                 \\____-> refused, until the attempt ends: Envoy drops it, or it was the last
"""

from __future__ import annotations

from typing import Final, Literal

from fairlead.api.stream_error import stream_error
from fairlead.core.blame import QUEUE_FULL
from fairlead.extproc import headers as h
from fairlead.extproc import replies
from fairlead.extproc.messages import Message, RequestBody
from fairlead.extproc.observed import EVENT_STREAM
from fairlead.extproc.services import Services

MOST_S: Final = 3600  # a prompt may wait and be computed for minutes before its first token
_HTTP_OK: Final = 200
_WAIT: Final = (replies.wait(MOST_S),)
_PASSES: Final = (replies.RESPONSE_HEADERS, replies.RESPONSE_BODY)


class FirstEvent:
    """One attempt. `on` takes each message, and gives the replies to it, in order; after `is_over` none is wanted."""

    __slots__ = ("_address", "_phase", "_services")

    def __init__(self, services: Services, address: bytes) -> None:
        """`address` is the engine's, as Envoy has it."""
        self._services = services
        self._address = address
        self._phase: Literal["start", "waiting", "refused", "over"] = "start"

    @property
    def is_over(self) -> bool:
        return self._phase == "over"

    def on(self, message: Message) -> tuple[bytes, ...]:
        if isinstance(message, RequestBody):
            return self._let_pass(())
        if message.HasField("response_headers") and self._phase == "start":
            status, content_type = h.status_and_type(message.response_headers.headers)
            is_stream = status == _HTTP_OK and content_type.startswith(EVENT_STREAM)
            if not is_stream or message.response_headers.end_of_stream:
                return self._let_pass((replies.RESPONSE_HEADERS,))
            self._phase = "waiting"
            self._services.recorder.held_streams += 1
            return _WAIT  # else Envoy would take us for one that hangs, and go on without us
        if message.HasField("response_body") and self._phase == "waiting":
            refusal = stream_error(message.response_body.body)
            if refusal is None:
                return self._let_pass(_PASSES)
            self._phase = "refused"
            self._refused(refusal.status)
            return replies.refused_stream(*refusal)
        if message.HasField("response_body") and self._phase == "refused":
            return (replies.NO_RESPONSE_BODY,)
        return self._let_pass((replies.RESPONSE_HEADERS,) if self._phase == "waiting" else ())

    def _refused(self, status: int) -> None:
        services = self._services
        services.recorder.refused_streams += 1
        endpoint = services.router.pool.by_address.get(self._address.decode("latin-1"))
        if endpoint is None:
            return
        now_s = services.clock_s()
        endpoint.request_answered(now_s)
        if status in QUEUE_FULL:
            endpoint.refused(now_s)

    def _let_pass(self, made: tuple[bytes, ...]) -> tuple[bytes, ...]:
        self._phase = "over"
        return made
