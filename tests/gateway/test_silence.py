"""A sidecar that is silent and closes nothing: it hangs, or its machine is gone. What waits on it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest

from fairlead.addresses import host_and_port
from fairlead.config import Config
from fairlead.edge.grpc import Health
from fairlead.edge.server import Server
from fairlead.extproc.server import SERVICE
from fairlead.gateway import EndpointDiscovery, EnvoyProcess, Host, bootstrap
from fairlead.processes import free_ports
from tests.gateway.conftest import StartEngine, StartEnvoy, StartProcessor
from tests.gateway.world import WITHIN_S
from tests.waiting import until

pytestmark = pytest.mark.slow


class Wire:
    """What is written at either end arrives at the other, until it is cut: then nothing does, and nothing is closed."""

    def __init__(self, to: str) -> None:
        self._to = host_and_port(to)
        self.address = ""
        self.is_cut = False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._to)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._one_way(reader, far_writer), self._one_way(far_reader, writer))

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not self.is_cut:
                writer.write(data)
                await writer.drain()
        if not self.is_cut:
            writer.close()


@contextlib.asynccontextmanager
async def wire(to: str) -> AsyncIterator[Wire]:
    made = Wire(to)
    async with await asyncio.start_server(made.carry, "127.0.0.1", 0) as server:
        made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made
        server.close()


async def test_in_full_duplex_a_body_at_a_silent_sidecar_is_a_503_that_clients_retry(
    engine: StartEngine, processor: StartProcessor, envoy: StartEnvoy
) -> None:
    first = await engine("first")
    sidecar, address = await processor(first.address)
    async with wire(address) as between:
        gateway = await envoy(first.address, sidecar=between.address, mode="full_duplex")
        sidecar.hangs = True
        asking = asyncio.create_task(gateway.post())
        async with asyncio.timeout(WITHIN_S):
            await sidecar.asked.wait()

        between.is_cut = True
        answer = await asking

    assert (answer.status, answer.headers["retry-after"], first.received) == (503, "1", [])
    assert json.loads(answer.body)["error"]["code"] == "no_advice"


async def test_envoy_follows_the_next_sidecar_when_the_one_that_it_followed_is_silent(engine: StartEngine) -> None:
    first, late = await engine("first"), await engine("late")
    known = [Host(each.address, "m") for each in (first, late)]
    listen, admin, *addresses = (f"127.0.0.1:{port}" for port in free_ports(4))
    async with contextlib.AsyncExitStack() as stack:
        one, other = [EndpointDiscovery(lambda: None, time.monotonic) for _ in addresses]
        healths = [Health((SERVICE,)) for _ in addresses]
        for address, discovery, health in zip(addresses, (one, other), healths, strict=True):
            methods = {**health.methods(), **discovery.methods()}
            server = Server(methods, max_message_bytes=1 << 20, report_fault=pytest.fail)
            await server.start(address)
            stack.push_async_callback(server.drain, 0)
            discovery.publish(known[:1])
        healths[0].set((SERVICE,), serving=True)
        between = await stack.enter_async_context(wire(addresses[0]))
        config = Config.model_validate(
            {
                "gateway": {"listen": listen, "processors": [between.address, addresses[1]]},
                "pool": {"endpoints": [{"address": first.address, "model": "m"}]},
            }
        )
        await stack.enter_async_context(EnvoyProcess(bootstrap(config, admin_address=admin)))
        await until(lambda: one.statistics().acks > 0, "the first sidecar is followed")

        between.is_cut = True
        healths[1].set((SERVICE,), serving=True)
        other.publish(known)

        await until(lambda: other.statistics().acks > 0, "the second sidecar is followed")
