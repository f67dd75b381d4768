"""Envoy's processor as a gRPC server, on both edges: addresses, health, and a drain that loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairlead.api.headers import FOLLOWS
from fairlead.extproc import request_half
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.server import (
    HEALTH_NAMES,
    LIVENESS,
    NOTICED_S,
    READINESS_NAMES,
    SERVICE,
    ProcessorServer,
    ServerName,
    processor_server,
)
from fairlead.extproc.services import Services
from fairlead.gateway import Host, endpoint_discovery
from fairlead.gateway.parts import ENGINES_CLUSTER
from fairlead.gateway.pb.endpoint_discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from tests.extproc.world import chat, kinds, make_services, request_body, request_headers, response_headers

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
Serve = Callable[[str], ProcessorServer]
Call = Any  # the stubs of grpc.aio do not know a method that is made by its name


def process(channel: grpc.aio.Channel, **options: Any) -> Call:
    method = channel.stream_stream(
        f"/{SERVICE}/Process",
        request_serializer=pb.ProcessingRequest.SerializeToString,
        response_deserializer=pb.ProcessingResponse.FromString,
    )
    return method(**options)


async def say(call: Call, message: pb.ProcessingRequest) -> pb.ProcessingResponse:
    await call.write(message)
    reply = await call.read()
    assert isinstance(reply, pb.ProcessingResponse)
    return reply


@pytest.fixture
def services() -> Services:
    return make_services()


@pytest.fixture(params=["native", "grpcio"])
def serve(request: pytest.FixtureRequest, services: Services) -> Serve:
    """Makes the server of either edge."""
    name: ServerName = request.param

    def make(address: str) -> ProcessorServer:
        return processor_server(services, address, name)

    return make


@pytest.mark.parametrize("name", HEALTH_NAMES)
async def test_every_name_is_serving(serve: Serve, name: str) -> None:
    server = serve("127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    await server.drain(0)
    assert answer.status == SERVING


async def test_while_draining_liveness_stays_serving_and_the_others_do_not(serve: Serve) -> None:
    server = serve("127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        running = process(channel)
        await say(running, request_headers())
        stub: Any = health_pb2_grpc.HealthStub(channel)
        names = (*READINESS_NAMES, LIVENESS)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in names]
        before = [(await watch.read()).status for watch in watches]
        withdrawing = asyncio.create_task(server.withdraw())
        after = [(await watch.read()).status for watch in watches[:-1]]
        after.append((await stub.Check(health_pb2.HealthCheckRequest(service=LIVENESS))).status)
        for watch in watches:
            watch.cancel()
        await running.done_writing()
        await withdrawing
        await server.drain(5)
    assert (before, after) == ([SERVING] * 4, [NOT_SERVING] * 3 + [SERVING])


async def test_it_takes_new_requests_until_a_gateway_that_checks_health_has_noticed(serve: Serve) -> None:
    server = serve("127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        withdrawing = asyncio.create_task(server.withdraw())
        checked: list[int] = []
        while len(checked) < 2:
            checked.append((await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))).status)
            call = process(channel)
            assert kinds([await say(call, request_headers())]) == ["request_headers"]
            await call.done_writing()
        assert not withdrawing.done()
        await withdrawing
    await server.drain(0)
    assert checked[-1] == NOT_SERVING


async def test_where_nobody_checks_health_it_does_not_wait_for_long(serve: Serve) -> None:
    server = serve("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(NOTICED_S):
        await server.withdraw()
    await server.drain(0)


async def test_before_endpoints_are_known_requests_go_on_without_it(serve: Serve, services: Services) -> None:
    """As after a restart so quick that the gateway has not noticed it."""
    services.pool_is_known = False
    server = serve("127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await say(process(channel), request_headers())
        services.pool_is_known = True
        assert kinds([await say(process(channel), request_headers())]) == ["request_headers"]
    await server.drain(0)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert services.recorder.running_streams == 0


async def test_an_envoy_that_follows_gets_its_first_advice_when_one_has_the_endpoints(
    serve: Serve, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it would send the request to any engine that it knows, of whichever model."""
    monkeypatch.setattr(endpoint_discovery, "PATIENCE_S", 60.0)
    server = serve("127.0.0.1:0")
    port = await server.start()
    services.envoys.publish([Host("10.0.0.1:8000", "small")])
    pushes: asyncio.Queue[bytes] = asyncio.Queue()
    envoy = services.envoys.subscriber(pushes.put_nowait)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        follows = asyncio.create_task(
            say(process(channel, metadata=((FOLLOWS.decode(), "endpoints"),)), request_headers())
        )
        assert kinds([await say(process(channel), request_headers())]) == ["request_headers"], "it does not follow"
        envoy.message(DiscoveryRequest(resource_names=[ENGINES_CLUSTER]).SerializeToString())
        nonce = DiscoveryResponse.FromString(await pushes.get()).nonce
        assert not follows.done()
        answer = DiscoveryRequest(resource_names=[ENGINES_CLUSTER], response_nonce=nonce)
        envoy.message(answer.SerializeToString())
        assert kinds([await follows]) == ["request_headers"]
    await server.drain(0)
    assert services.recorder.running_streams == 0


async def test_it_listens_on_a_unix_socket(serve: Serve, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/fairlead.sock"
    server = serve(address)
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        call = process(channel)
        reply = await say(call, request_headers())
        await call.done_writing()
    await server.drain(0)
    assert kinds([reply]) == ["request_headers"]


async def test_an_address_that_is_taken_is_an_os_error(serve: Serve) -> None:
    first = serve("127.0.0.1:0")
    port = await first.start()
    with pytest.raises(OSError, match="cannot listen"):
        await serve(f"127.0.0.1:{port}").start()
    await first.drain(0)


async def test_while_draining_a_running_stream_goes_on_and_a_new_one_is_refused(
    serve: Serve, services: Services
) -> None:
    server = serve("127.0.0.1:0")
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
    assert services.recorder.running_streams == 0


async def test_a_fault_of_ours_passes_the_message_on_and_is_counted(
    serve: Serve, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(request_half, "prepare", broken)
    server = serve("127.0.0.1:0")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = process(channel)
        await say(call, request_headers())
        passed = await say(call, request_body(chat()))
        await call.done_writing()
    await server.drain(0)
    assert kinds([passed]) == ["request_body"]
    assert services.recorder.stream_failures == 1
    assert "on purpose" in services.recorder.last_stream_failure
