"""The gRPC server: addresses, health names, and a drain that loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.pick import Shared
from fairlead.extproc.server import HEALTH_NAMES, SERVICE, ProcessorServer
from fairlead.extproc.stream import Stream
from tests.extproc.world import chat, kinds, make_shared, request_body, request_headers, response_headers

SERVING = health_pb2.HealthCheckResponse.SERVING
Call = Any  # the stubs of grpc.aio do not know a method that is made by its name


def process(channel: grpc.aio.Channel) -> Call:
    method = channel.stream_stream(
        f"/{SERVICE}/Process",
        request_serializer=pb.ProcessingRequest.SerializeToString,
        response_deserializer=pb.ProcessingResponse.FromString,
    )
    return method()


async def say(call: Call, message: pb.ProcessingRequest) -> pb.ProcessingResponse:
    await call.write(message)
    reply = await call.read()
    assert isinstance(reply, pb.ProcessingResponse)
    return reply


@pytest.fixture
def shared() -> Shared:
    return make_shared()


@pytest.mark.parametrize("name", HEALTH_NAMES)
async def test_every_name_is_serving(shared: Shared, name: str) -> None:
    server = ProcessorServer(shared, "127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    await server.drain(0)
    assert answer.status == SERVING


async def test_it_listens_on_a_unix_socket(shared: Shared, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/fairlead.sock"
    server = ProcessorServer(shared, address)
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        call = process(channel)
        reply = await say(call, request_headers())
        await call.done_writing()
    await server.drain(0)
    assert kinds([reply]) == ["request_headers"]


async def test_an_address_that_is_taken_is_an_os_error(shared: Shared) -> None:
    first = ProcessorServer(shared, "127.0.0.1:0")
    port = await first.start()
    with pytest.raises(OSError, match="cannot listen"):
        await ProcessorServer(shared, f"127.0.0.1:{port}").start()
    await first.drain(0)


async def test_while_draining_a_running_stream_goes_on_and_a_new_one_is_refused(shared: Shared) -> None:
    server = ProcessorServer(shared, "127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        running = process(channel)
        await say(running, request_headers())
        draining = asyncio.create_task(server.drain(5))
        picked = await say(running, request_body(chat()))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as fresh:
            with pytest.raises(grpc.aio.AioRpcError):
                await say(process(fresh), request_headers())
        answered = await say(running, response_headers())
        await running.done_writing()
        await draining
    assert kinds([picked, answered]) == ["request_body", "response_headers"]
    assert server.running_streams == 0


async def test_a_fault_of_ours_passes_the_message_on_and_is_counted(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(Stream, "_pick", broken)
    server = ProcessorServer(shared, "127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = process(channel)
        await say(call, request_headers())
        passed = await say(call, request_body(chat()))
        await call.done_writing()
    await server.drain(0)
    assert kinds([passed]) == ["request_body"]
    assert shared.recorder.stream_failures == 1
    assert "on purpose" in shared.recorder.last_stream_failure
