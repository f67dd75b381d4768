"""The gRPC server that Envoy talks to: streams, the health service, and a drain that loses nothing.

The processor's methods are registered by name with plain message classes: no generated service code, no interceptors.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from fairlead.extproc import replies
from fairlead.extproc.pb.ext_proc_pb2 import ProcessingRequest
from fairlead.extproc.pick import Shared
from fairlead.extproc.stream import Stream

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_NAMES: Final = ("", "liveness", "readiness", SERVICE)
_MESSAGE_OVERHEAD_BYTES: Final = 1 << 20  # headers and framing beside the body


class ProcessorServer:
    """`start` binds and serves; `drain` refuses new streams and lets running ones finish."""

    def __init__(self, shared: Shared, address: str) -> None:
        self._shared = shared
        self._address = address
        self._health = health.HealthServicer()
        self.running_streams = 0
        limit = shared.max_body_bytes + _MESSAGE_OVERHEAD_BYTES
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
                ("grpc.so_reuseport", 0),  # a second sidecar on the port is a mistake, not a share of the load
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            )
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process, request_deserializer=ProcessingRequest.FromString, response_serializer=_as_it_is
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> int:
        """Bind and serve; returns the port (1 for a unix socket). Raises OSError when the address is taken."""
        try:
            port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._address}") from error
        await self._server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        return port

    async def drain(self, grace_s: float) -> None:
        """Say NOT_SERVING, refuse new streams, and give running ones `grace_s` to finish."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.stop(grace_s)

    async def _set_health(self, status: Any) -> None:
        for name in HEALTH_NAMES:
            await self._health.set(name, status)

    async def _process(
        self, _: AsyncIterator[ProcessingRequest], context: grpc.aio.ServicerContext[ProcessingRequest, bytes]
    ) -> None:
        stream = Stream(self._shared)
        self.running_streams += 1
        try:
            message = await context.read()
            while isinstance(message, ProcessingRequest):  # not grpc.aio.EOF
                for reply in self._replies(stream, message):
                    await context.write(reply)
                message = await (context.read() if stream.held is None else self._settle(stream, context))
        finally:
            self.running_streams -= 1
            stream.close()

    async def _settle(
        self, stream: Stream, context: grpc.aio.ServicerContext[ProcessingRequest, bytes]
    ) -> ProcessingRequest | Any:
        """Reply to a held answer once it is settled; the next message. If the client leaves first, it is dropped."""
        held, cascades = stream.held, self._shared.cascades
        assert held is not None
        assert cascades is not None
        stream.held = None
        reading = asyncio.ensure_future(context.read())
        settling = asyncio.ensure_future(cascades.settle(held))
        try:
            await asyncio.wait((reading, settling), return_when=asyncio.FIRST_COMPLETED)
            if settling.done():
                await context.write(self._settled(settling))
            return await reading
        finally:
            reading.cancel()
            settling.cancel()

    def _settled(self, settling: asyncio.Future[bytes]) -> bytes:
        try:
            return settling.result()
        except Exception:  # a fault of ours must not become the client's
            self._shared.recorder.stream_failed(traceback.format_exc(limit=-8))
            return replies.RESPONSE_BODY

    def _replies(self, stream: Stream, message: ProcessingRequest) -> Iterable[bytes]:
        try:
            return stream.on(message)
        except Exception:  # a fault of ours must not become the client's
            self._shared.recorder.stream_failed(traceback.format_exc(limit=-8))
            return stream.pass_on(message)


def _as_it_is(reply: bytes) -> bytes:
    return reply
