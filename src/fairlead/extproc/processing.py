"""One call of `Process` between an edge and its `Stream`: what both edges do alike.

Replies may come later than their message: `later` then gives what will make them. The client's next message waits for
that, and its end drops it.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Iterable

from fairlead.extproc.exchange import Send
from fairlead.extproc.messages import Message
from fairlead.extproc.replies import Reply
from fairlead.extproc.services import Services
from fairlead.extproc.stream import Stream


class Processing:
    """`on` each message, `later` after it, and `close` at the end; none of them raises."""

    __slots__ = ("_services", "_stream")

    def __init__(self, services: Services, send: Send | None = None, traceparent: bytes = b"") -> None:
        """`send` sends a reply that no message waits for; None: the server cannot. `traceparent` is the call's."""
        self._services = services
        self._stream = Stream(services, send)
        if traceparent:
            self._stream.traceparent = traceparent

    def on(self, message: Message) -> Iterable[Reply]:
        """Replies to `message`; after an internal error, replies that let the request pass."""
        try:
            return self._stream.on(message)
        except Exception:  # an internal error must not fail the client's request
            self._failed()
            return self._stream.give_up(message)

    def later(self) -> Awaitable[Iterable[Reply]] | None:
        """What makes the replies that the last message still waits for; it raises cancellation only."""
        held, self._stream.held = self._stream.held, None
        return held

    def close(self) -> None:
        try:
            self._stream.close()
        except Exception:
            self._failed()

    def _failed(self) -> None:
        self._services.recorder.stream_failed(traceback.format_exc(limit=-8))
