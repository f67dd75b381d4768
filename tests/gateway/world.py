"""The world around an Envoy under test: engines that remember what reached them, and a processor that does as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_health.v1.health_pb2 import HealthCheckResponse

from fairlead.edge.grpc import Call, Health, Method
from fairlead.edge.server import Server
from fairlead.extproc import replies
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.server import SERVICE, ServerName

DESTINATION = "x-gateway-destination-endpoint"
WITHIN_S = 60.0  # ends a test that would hang; what a test waits for comes in milliseconds


def body_of(size: int) -> bytes:
    """A JSON object of `size` bytes, at least 8, that do not repeat each other."""
    text = bytes(32 + index % 89 for index in range(size - 8)).replace(b'"', b"_").replace(b"\\", b"_")
    return b'{"x":"' + text + b'"}'


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Engine:
    """Answers with `status` and its name, resets, or never answers; to Envoy's health check it is `healthy` or not."""

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

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("user-agent") == "Envoy/HC":
            return await self._health(request)
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.method, request.raw_path, headers, body))
        self.reached.set()
        if headers.get("upgrade") == "websocket":
            echo = web.WebSocketResponse()
            await echo.prepare(request)
            async for message in echo:
                await echo.send_str(f"{self.name}: {message.data}")
            return echo
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
    edge: ServerName = "native"
    reads: bool = True  # bodies; else it chooses on the headers
    refusal: pb.ImmediateResponse | None = None
    shows: tuple[str, ...] = ()  # headers that it adds to each answer
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # something of a body has come
    served: list[str] = field(default_factory=list)  # as Envoy tells with the response's headers
    bodies: list[bytes] = field(default_factory=list)
    _grpcio: grpc.aio.Server | None = None
    _native: Server | None = None

    async def start(self, address: str) -> None:
        if self.edge == "native":
            state = Health((SERVICE,))
            methods = {f"/{SERVICE}/Process": Method(lambda call: NativeCall(call, self)), **state.methods()}
            self._native = Server(methods, max_message_bytes=64 << 20, report_fault=pytest.fail)
            await self._native.start(address)
            state.set((SERVICE,), serving=True)
            return
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._grpcio = grpc.aio.server(options=unlimited)
        self._grpcio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
        servicer = health.HealthServicer()
        await servicer.set(SERVICE, HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._grpcio)
        self._grpcio.add_insecure_port(address)
        await self._grpcio.start()

    def came(self, request: pb.ProcessingRequest) -> None:
        if request.HasField("request_body"):
            self.asked.set()

    async def stop(self) -> None:
        if self._grpcio is not None:
            await self._grpcio.stop(grace=None)
        if self._native is not None:
            await self._native.drain(0)

    async def _process(
        self, requests: AsyncIterator[pb.ProcessingRequest], _: object
    ) -> AsyncIterator[pb.ProcessingResponse]:
        talk = _Talk(self)
        async for request in requests:
            self.came(request)
            if self.hangs:
                continue
            for reply in talk.replies(request):
                yield reply


class NativeCall:
    def __init__(self, call: Call, processor: Processor) -> None:
        self._call = call
        self._processor = processor
        self._talk = _Talk(processor)

    def message(self, message: bytes) -> None:
        request = pb.ProcessingRequest.FromString(message)
        self._processor.came(request)
        if not self._processor.hangs:
            for reply in self._talk.replies(request):
                self._call.send(reply.SerializeToString())

    def half_closed(self) -> None:
        self._call.finish()

    def closed(self) -> None:
        pass


class _Talk:
    """One request."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._full_duplex = False
        self._body = b""

    def replies(self, request: pb.ProcessingRequest) -> Iterator[pb.ProcessingResponse]:
        match request.WhichOneof("request"):
            case "request_headers":
                self._full_duplex = request.protocol_config.request_body_mode == pb.FULL_DUPLEX_STREAMED
                if not self._processor.reads:
                    destinations = ",".join(self._processor.destinations)
                    choice = replies.routed_headers(destinations, (), (), replies.SKIP_BODY)
                    yield pb.ProcessingResponse.FromString(choice)
                elif request.request_headers.end_of_stream:
                    yield pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=self._choice()))
                elif not self._full_duplex:
                    yield pb.ProcessingResponse.FromString(replies.REQUEST_HEADERS_OF_A_BODY)
            case "request_body":
                self._body += request.request_body.body
                if request.request_body.end_of_stream:
                    self._processor.bodies.append(self._body)
                    yield from self._after_body(self._body)
            case "response_headers":
                lb = dict(request.metadata_context.filter_metadata["envoy.lb"].items())
                self._processor.served.append(str(lb.get(f"{DESTINATION}-served")))
                shown = [
                    pb.HeaderValueOption(header=pb.HeaderValue(key=name.encode(), raw_value=b"v"))
                    for name in self._processor.shows
                ]
                response = pb.CommonResponse(header_mutation=pb.HeaderMutation(set_headers=shown))
                yield pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=response))
            case other:
                raise AssertionError(f"unexpected message: {other}")

    def _after_body(self, body: bytes) -> Iterator[pb.ProcessingResponse]:
        refusal = self._processor.refusal
        if refusal is not None:
            yield pb.ProcessingResponse(immediate_response=refusal)
            return
        if not self._full_duplex:
            yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=self._choice()))
            return
        yield pb.ProcessingResponse(
            request_headers=pb.HeadersResponse(response=self._choice()), mode_override=replies.BY_CHUNKS
        )
        for start in range(0, len(body), 62_000):
            chunk = body[start : start + 62_000]
            streamed = pb.StreamedBodyResponse(body=chunk, end_of_stream=start + len(chunk) == len(body))
            mutation = pb.BodyMutation(streamed_response=streamed)
            yield pb.ProcessingResponse(
                request_body=pb.BodyResponse(response=pb.CommonResponse(body_mutation=mutation))
            )

    def _choice(self) -> pb.CommonResponse:
        value = ",".join(self._processor.destinations).encode()
        option = pb.HeaderValueOption(header=pb.HeaderValue(key=DESTINATION.encode(), raw_value=value))
        return pb.CommonResponse(header_mutation=pb.HeaderMutation(set_headers=[option]), clear_route_cache=True)
