"""A processor without any logic: what an external processor in Python costs when it decides nothing.

The edges, options, message classes and kinds of replies of `fairlead.extproc`, with constant replies that send every
request to the same addresses. `python -m fairlead.tools.bench.null_processor native 127.0.0.1:1 ...` (or `grpcio`)
prints its address as a JSON line and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from fairlead.edge.grpc import Call, Health, Method
from fairlead.edge.server import Server
from fairlead.extproc import replies
from fairlead.extproc.pb.ext_proc_pb2 import ProcessingRequest
from fairlead.extproc.server import PROCESS, SERVICE, ServerName

_MOST_MESSAGE_BYTES = 33 << 20  # as the sidecar with its default configuration


def constant_replies(addresses: list[str]) -> dict[str, bytes]:
    """The reply to each kind of message, with the headers that Fairlead sets."""
    return {
        "request_headers": replies.REQUEST_HEADERS_OF_A_BODY,
        "request_body": replies.whole(replies.routed_body(",".join(addresses), (), (), None)),
        "response_headers": replies.response_headers("bench-model", addresses[0], "cost", b"bench-request"),
        "response_trailers": replies.RESPONSE_TRAILERS,
    }


async def serve(edge: ServerName, addresses: list[str]) -> None:
    """Listen on a free port of the loopback address, say which, and serve until cancelled."""
    reply_to = constant_replies(addresses)
    port = await (_serve_native(reply_to) if edge == "native" else _serve_grpcio(reply_to))
    print(json.dumps([f"127.0.0.1:{port}"]), flush=True)
    await asyncio.Event().wait()


async def _serve_native(reply_to: dict[str, bytes]) -> int:
    health = Health((SERVICE,))
    methods = {PROCESS: Method(lambda call: _NullCall(call, reply_to)), **health.methods()}
    server = Server(methods, max_message_bytes=_MOST_MESSAGE_BYTES, report_fault=print)
    port = await server.start("127.0.0.1:0")
    health.set((SERVICE,), serving=True)
    return port


class _NullCall:
    def __init__(self, call: Call, reply_to: dict[str, bytes]) -> None:
        self._call = call
        self._reply_to = reply_to

    def message(self, message: bytes) -> None:
        self._call.send(self._reply_to[ProcessingRequest.FromString(message).WhichOneof("request") or ""])

    def half_closed(self) -> None:
        self._call.finish()

    def closed(self) -> None:
        pass


async def _serve_grpcio(reply_to: dict[str, bytes]) -> int:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_health.v1._async import HealthServicer

    async def process(_: AsyncIterator[ProcessingRequest], context: Any) -> None:
        while isinstance(message := await context.read(), ProcessingRequest):
            await context.write(reply_to[message.WhichOneof("request") or ""])

    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MOST_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        )
    )
    handler = grpc.stream_stream_rpc_method_handler(
        process, request_deserializer=ProcessingRequest.FromString, response_serializer=_as_it_is
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    _kept.append(server)
    return port


def _as_it_is(reply: bytes) -> bytes:
    return reply


_kept: list[object] = []  # a server that nobody refers to stops

if __name__ == "__main__":
    import uvloop

    from fairlead.serving.memory import keep_freed_memory

    keep_freed_memory()  # as `fairlead serve`: page faults of long bodies would be counted as the edge's
    uvloop.run(serve("native" if sys.argv[1] == "native" else "grpcio", sys.argv[2:]))
