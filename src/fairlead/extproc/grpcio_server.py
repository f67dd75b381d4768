"""The processor on grpcio's server: the alternative to Fairlead's own edge, while that is young.

The processor's methods are registered by name with plain message classes: no generated service code, no interceptors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from fairlead.api.headers import FIRST_EVENT, FOLLOWS, TRACEPARENT
from fairlead.edge.grpc import StatusError
from fairlead.extproc.first_event import FirstEvent
from fairlead.extproc.pb.ext_proc_pb2 import ProcessingRequest
from fairlead.extproc.processing import Processing
from fairlead.extproc.replies import Reply, whole
from fairlead.extproc.server import (
    HEALTH_NAMES,
    LIVENESS,
    READINESS_NAMES,
    SERVICE,
    TOO_EARLY,
    max_message_bytes,
    until_noticed,
)
from fairlead.extproc.services import Services
from fairlead.gateway import endpoint_discovery
from fairlead.gateway.endpoint_discovery import Subscriber


class _Health(health.HealthServicer):
    checks = 0  # asked by `Check` so far

    async def Check(  # noqa: N802 - grpcio's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        self.checks += 1
        return await super().Check(request, context)


class GrpcioServer:
    """See `ProcessorServer`."""

    def __init__(self, services: Services, address: str) -> None:
        self._services = services
        self._address = address
        self._health = _Health()
        limit = max_message_bytes(services)
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
        endpoints = grpc.stream_stream_rpc_method_handler(
            self._endpoints, request_deserializer=_as_it_is, response_serializer=_as_it_is
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),
                grpc.method_handlers_generic_handler(endpoint_discovery.SERVICE, {"StreamEndpoints": endpoints}),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> int:
        try:
            port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._address}") from error
        await self._server.start()
        names = HEALTH_NAMES if self._services.pool_is_known else (LIVENESS,)
        await self._set_health(names, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def report_ready(self) -> None:
        await self._set_health(READINESS_NAMES, health_pb2.HealthCheckResponse.SERVING)

    async def withdraw(self) -> None:
        await self._set_health(READINESS_NAMES, health_pb2.HealthCheckResponse.NOT_SERVING)
        await until_noticed(lambda: self._health.checks)

    async def drain(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    async def _set_health(self, names: Iterable[str], status: Any) -> None:
        for name in names:
            await self._health.set(name, status)

    async def _process(
        self, _: AsyncIterator[ProcessingRequest], context: grpc.aio.ServicerContext[ProcessingRequest, bytes]
    ) -> None:
        if (address := _metadata(context, FIRST_EVENT)) != b"":
            await self._first_event(context, address)
            return
        if not self._services.pool_is_known:
            await context.abort(grpc.StatusCode.UNAVAILABLE, TOO_EARLY)
        if self._services.envoys.is_awaited and _metadata(context, FOLLOWS):
            await self._services.envoys.followed()
        traceparent = _metadata(context, TRACEPARENT) if self._services.tracer.is_on else b""
        processing = Processing(self._services, traceparent=traceparent)
        self._services.recorder.running_streams += 1
        try:
            message = await context.read()
            while isinstance(message, ProcessingRequest):  # not grpc.aio.EOF
                for reply in processing.on(message):
                    await context.write(whole(reply))
                later = processing.later()
                message = await (context.read() if later is None else self._next(later, context))
        finally:
            self._services.recorder.running_streams -= 1
            processing.close()

    async def _first_event(self, context: grpc.aio.ServicerContext[ProcessingRequest, bytes], address: bytes) -> None:
        """One attempt at an engine that may refuse in its first event."""
        first = FirstEvent(self._services, address)
        while not first.is_over and isinstance(message := await context.read(), ProcessingRequest):
            for reply in first.on(message):
                await context.write(reply)

    async def _endpoints(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        """One Envoy that follows the pool."""
        waiting: asyncio.Queue[bytes] = asyncio.Queue()
        subscriber = self._services.envoys.subscriber(waiting.put_nowait)
        reading = asyncio.ensure_future(_read(messages, subscriber))
        try:
            while True:
                coming = asyncio.ensure_future(waiting.get())
                await asyncio.wait((coming, reading), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    break
                yield coming.result()
            reading.result()
        except StatusError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.text)
        finally:
            reading.cancel()
            subscriber.closed()

    async def _next(
        self, later: Awaitable[Iterable[Reply]], context: grpc.aio.ServicerContext[ProcessingRequest, bytes]
    ) -> ProcessingRequest | Any:
        """Write the replies that come later; the next message, which waits for them. The client's end drops them."""
        reading = asyncio.ensure_future(context.read())
        replying = asyncio.ensure_future(later)
        try:
            await asyncio.wait((reading, replying), return_when=asyncio.FIRST_COMPLETED)
            if not replying.done() and not isinstance(reading.result(), ProcessingRequest):
                return reading.result()
            for reply in await replying:
                await context.write(whole(reply))
            return await reading
        finally:
            reading.cancel()
            replying.cancel()


async def _read(messages: AsyncIterator[bytes], subscriber: Subscriber) -> None:
    async for message in messages:
        subscriber.message(message)


def _metadata(context: grpc.aio.ServicerContext[Any, Any], wanted: bytes) -> bytes:
    for name, value in context.invocation_metadata() or ():
        if name == wanted.decode():
            return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
    return b""


def _as_it_is(reply: bytes) -> bytes:
    return reply
