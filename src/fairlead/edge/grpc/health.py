"""The health service `grpc.health.v1.Health`: `Check`, and `Watch` that reports every change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from fairlead.edge.grpc.calls import Call, Method
from fairlead.edge.grpc.status import Status, StatusError
from fairlead.edge.grpc.unary import server_streaming, unary

_SERVING: Final = HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()
_NOT_SERVING: Final = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString()
_UNKNOWN: Final = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN).SerializeToString()


class Health:
    """The state of each name, and who watches it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._answers = dict.fromkeys(names, _NOT_SERVING)
        self._watchers: dict[str, dict[Call, None]] = {}
        self.checks = 0  # asked by `Check` so far

    def set(self, names: Iterable[str], *, serving: bool) -> None:
        """Change these names, and notify their watchers. Raises KeyError for an unknown name."""
        answer = _SERVING if serving else _NOT_SERVING
        for name in names:
            if self._answers[name] != answer:
                self._answers[name] = answer
                for call in tuple(self._watchers.get(name, ())):
                    call.send(answer)

    def methods(self) -> dict[str, Method]:
        service = "/grpc.health.v1.Health/"
        return {
            service + "Check": unary(self._check),
            service + "Watch": server_streaming(self._watch, ends_at_drain=True),
        }

    def _check(self, message: bytes) -> bytes:
        self.checks += 1
        answer = self._answers.get(_name(message))
        if answer is None:
            raise StatusError(Status.NOT_FOUND, "no service of this name; ask for one of: " + ", ".join(self._answers))
        return answer

    def _watch(self, message: bytes, call: Call) -> Callable[[], None]:
        name = _name(message)
        call.send(self._answers.get(name, _UNKNOWN))
        if name in self._answers:  # names are fixed: the caller of an unknown one waits, as the protocol wants
            self._watchers.setdefault(name, {})[call] = None

        def end() -> None:
            self._watchers.get(name, {}).pop(call, None)

        return end


def _name(message: bytes) -> str:
    try:
        return HealthCheckRequest.FromString(message).service
    except DecodeError:
        raise StatusError(Status.INTERNAL, "the message is not a HealthCheckRequest") from None
