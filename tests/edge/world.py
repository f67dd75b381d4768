"""Methods and servers for tests that use sockets."""

from __future__ import annotations

from fairlead.edge.grpc import Call, Method


class Echo:
    """Sends back every message, and ends when its client has."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def message(self, message: bytes) -> None:
        self._call.send(message)

    def half_closed(self) -> None:
        self._call.finish()

    def closed(self) -> None:
        pass


def echo_method() -> Method:
    return Method(Echo)
