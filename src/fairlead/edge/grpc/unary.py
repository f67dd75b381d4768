"""Methods as plain functions: one message in, one out; or one in, and many out for as long as the caller stays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from fairlead.edge.grpc.calls import Call, Method
from fairlead.edge.grpc.status import Status, StatusError


def unary(answer: Callable[[bytes], bytes]) -> Method:
    """A method of one message each way. `answer` may raise StatusError."""
    return Method(lambda call: _Unary(call, answer))


def server_streaming(begin: Callable[[bytes, Call], Callable[[], None]], *, ends_at_drain: bool = False) -> Method:
    """A method of one message in. `begin` sends through its call from now on, and returns what to do at its end."""
    return Method(lambda call: _ServerStreaming(call, begin), ends_at_drain)


class _OneMessage(ABC):
    """The client's one message, acted on when it has sent all; whether more came is then known."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._message: bytes | None = None

    def message(self, message: bytes) -> None:
        if self._message is not None:
            raise StatusError(Status.INVALID_ARGUMENT, "this method takes one message")
        self._message = message

    def half_closed(self) -> None:
        assert self._message is not None
        try:
            self.act(self._message)
        except StatusError as error:
            self.call.finish(error.status, error.text)

    @abstractmethod
    def act(self, message: bytes) -> None: ...


class _Unary(_OneMessage):
    def __init__(self, call: Call, answer: Callable[[bytes], bytes]) -> None:
        super().__init__(call)
        self._answer = answer

    def act(self, message: bytes) -> None:
        self.call.send(self._answer(message))
        self.call.finish()

    def closed(self) -> None:
        """Nothing is left to end: the answer went with the message."""


class _ServerStreaming(_OneMessage):
    def __init__(self, call: Call, begin: Callable[[bytes, Call], Callable[[], None]]) -> None:
        super().__init__(call)
        self._begin = begin
        self._end: Callable[[], None] | None = None

    def act(self, message: bytes) -> None:
        self._end = self._begin(message, self.call)
        if not self.call.is_open:  # it has finished already
            self._end()

    def closed(self) -> None:
        if self._end is not None:
            self._end()
