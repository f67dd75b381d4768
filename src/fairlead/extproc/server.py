"""Envoy's processor as a gRPC server, on either edge: streams, the health service, and a drain that loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal, Protocol

from fairlead.edge.tls import TlsFiles
from fairlead.extproc.services import Services

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
PROCESS: Final = f"/{SERVICE}/Process"
LIVENESS: Final = "liveness"  # stays SERVING while draining: what drains is not to be killed
READINESS_NAMES: Final = ("", "readiness", SERVICE)
HEALTH_NAMES: Final = (*READINESS_NAMES, LIVENESS)
_MESSAGE_OVERHEAD_BYTES: Final = 1 << 20  # headers and framing, next to the body

_CHECKED_S: Final = 1.2  # our bootstrap's interval between two checks, and a margin
NOTICED_S: Final = 2.5  # it takes two of them

TOO_EARLY: Final = "no endpoint is known yet"
"""A gateway that took us for healthy before goes on without us: it knows endpoints, and we do not."""

ServerName = Literal["native", "grpcio"]


class ProcessorServer(Protocol):
    """What the sidecar needs from an edge."""

    async def start(self) -> int:
        """Bind and serve; the port (1 for a Unix socket). Raises OSError when the address cannot be had."""

    async def report_ready(self) -> None:
        """Report SERVING where it started before `services.pool_is_known`."""

    async def withdraw(self) -> None:
        """Report NOT_SERVING, and serve on until those that check health have noticed."""

    async def drain(self, grace_s: float) -> None:
        """Refuse new streams, and give running ones `grace_s` to finish."""


async def until_noticed(checks: Callable[[], int]) -> None:
    """Wait until a gateway that checks health has met NOT_SERVING as often as it takes to believe it.

    A gateway whose streams are refused before that fails the requests of full duplex. `checks` counts; where none comes
    nobody is waited for.
    """
    before = checks()
    await asyncio.sleep(_CHECKED_S)
    if checks() > before:
        await asyncio.sleep(NOTICED_S - _CHECKED_S)


def processor_server(
    services: Services, address: str, server: ServerName = "native", tls: TlsFiles | None = None
) -> ProcessorServer:
    """The edge of that name. `tls` is for the native one only; the configuration enforces this."""
    if server == "native":
        from fairlead.extproc.native_server import NativeServer

        return NativeServer(services, address, tls)
    from fairlead.extproc.grpcio_server import GrpcioServer  # loads a C core and starts threads: only when asked for

    return GrpcioServer(services, address)


def max_message_bytes(services: Services) -> int:
    """The longest message that holds a body of the longest length."""
    return services.max_body_bytes + _MESSAGE_OVERHEAD_BYTES
