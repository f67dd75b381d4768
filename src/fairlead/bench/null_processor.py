"""A processor without any logic: what an external processor in Python costs when it decides nothing.

The server, options, message classes and kinds of replies of `fairlead.extproc`, with constant replies that send every
request to the same addresses; gRPC's core as it comes. `python -m fairlead.bench.null_processor 127.0.0.1:1 ...` prints
its address as a JSON line and serves until SIGTERM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from fairlead.extproc import replies
from fairlead.extproc.pb.ext_proc_pb2 import ProcessingRequest
from fairlead.extproc.server import SERVICE

_MOST_MESSAGE_BYTES = 33 << 20  # as the sidecar with its default configuration


def constant_replies(addresses: list[str]) -> dict[str, bytes]:
    """The reply to each kind of message, with the headers that Fairlead sets."""
    return {
        "request_headers": replies.REQUEST_HEADERS,
        "request_body": replies.routed_body(",".join(addresses), (), (), None),
        "response_headers": replies.response_headers("bench-model", addresses[0], "cost", b"bench-request"),
        "response_trailers": replies.RESPONSE_TRAILERS,
    }


async def serve(addresses: list[str]) -> None:
    """Listen on a free port of the loopback address, say which, and serve until cancelled."""
    reply_to = constant_replies(addresses)

    async def process(
        _: AsyncIterator[ProcessingRequest], context: grpc.aio.ServicerContext[ProcessingRequest, bytes]
    ) -> None:
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
    print(json.dumps([f"127.0.0.1:{port}"]), flush=True)
    await server.wait_for_termination()


def _as_it_is(reply: bytes) -> bytes:
    return reply


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(sys.argv[1:]))
