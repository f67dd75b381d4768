"""The world around an Envoy under test: engines that remember what reached them, and a processor that does as told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import grpc
from aiohttp import web
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_health.v1.health_pb2 import HealthCheckResponse

from fairlead.extproc.pb import ext_proc_pb2 as pb

DESTINATION = "x-gateway-destination-endpoint"
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, different from each other."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Engine:
    """Answers with `status` and its name, resets, or never answers; on /health it is `healthy` or not."""

    name: str
    status: int = 200
    healthy: bool = True
    resets: bool = False
    stalls: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)  # a request has come
    left: asyncio.Event = field(default_factory=asyncio.Event)  # the client of a stalled request has gone
    address: str = ""
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/health", self._health)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.method, request.raw_path, headers, body))
        self.reached.set()
        if self.stalls:
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        if self.resets:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=self.status, body=self.name.encode(), headers=self.headers)


@dataclass
class Processor:
    """Answers the protocol in both body modes and sends each request to `destinations`, in this order."""

    destinations: Iterable[str]
    hangs: bool = False
    refusal: pb.ImmediateResponse | None = None
    served: list[str] = field(default_factory=list)  # as Envoy tells with the response's headers
    bodies: list[bytes] = field(default_factory=list)
    _server: grpc.aio.Server | None = None

    async def start(self, address: str) -> None:
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._server = grpc.aio.server(options=unlimited)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
        servicer = health.HealthServicer()
        await servicer.set(SERVICE, HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)

    async def _process(
        self, requests: AsyncIterator[pb.ProcessingRequest], _: object
    ) -> AsyncIterator[pb.ProcessingResponse]:
        full_duplex, body = False, b""
        async for request in requests:
            if self.hangs:
                await asyncio.Event().wait()
            match request.WhichOneof("request"):
                case "request_headers":
                    full_duplex = request.protocol_config.request_body_mode == pb.FULL_DUPLEX_STREAMED
                    if request.request_headers.end_of_stream:
                        yield pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=self._choice()))
                    elif not full_duplex:
                        yield pb.ProcessingResponse(request_headers=pb.HeadersResponse())
                case "request_body":
                    body += request.request_body.body
                    if not request.request_body.end_of_stream:
                        continue
                    self.bodies.append(body)
                    async for response in self._after_body(body, full_duplex):
                        yield response
                case "response_headers":
                    lb = dict(request.metadata_context.filter_metadata["envoy.lb"].items())
                    self.served.append(str(lb.get(f"{DESTINATION}-served")))
                    yield pb.ProcessingResponse(response_headers=pb.HeadersResponse())
                case other:
                    raise AssertionError(f"unexpected message: {other}")

    async def _after_body(self, body: bytes, full_duplex: bool) -> AsyncIterator[pb.ProcessingResponse]:
        if self.refusal is not None:
            yield pb.ProcessingResponse(immediate_response=self.refusal)
            return
        if not full_duplex:
            yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=self._choice()))
            return
        yield pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=self._choice()))
        for start in range(0, len(body), 62_000):
            chunk = body[start : start + 62_000]
            streamed = pb.StreamedBodyResponse(body=chunk, end_of_stream=start + len(chunk) == len(body))
            mutation = pb.BodyMutation(streamed_response=streamed)
            yield pb.ProcessingResponse(
                request_body=pb.BodyResponse(response=pb.CommonResponse(body_mutation=mutation))
            )

    def _choice(self) -> pb.CommonResponse:
        value = ",".join(self.destinations).encode()
        option = pb.HeaderValueOption(header=pb.HeaderValue(key=DESTINATION.encode(), raw_value=value))
        return pb.CommonResponse(header_mutation=pb.HeaderMutation(set_headers=[option]), clear_route_cache=True)
