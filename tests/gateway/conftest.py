"""Fixtures: `engine(...)`, `processor(...)`, `envoy(...)` start real parts and stop them with the test."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from fairlead.addresses import host_and_port
from fairlead.config import Config
from fairlead.extproc.server import ServerName
from fairlead.gateway import EnvoyProcess, Mode, bootstrap
from fairlead.gateway.parts import SIDECAR_CLUSTER
from fairlead.processes import free_ports
from tests.gateway.world import WITHIN_S, Engine, Processor
from tests.waiting import until


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Gateway:
    """A running Envoy and a client for it."""

    process: EnvoyProcess
    url: str
    client: aiohttp.ClientSession

    async def post(self, body: bytes = b"{}", headers: Mapping[str, str] | None = None) -> Answer:
        return await self.ask("POST", "/v1/chat/completions", body, headers)

    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with self.client.request(method, self.url + path, data=body, headers=headers) as response:
            received = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, received, await response.read())


StartEngine = Callable[..., Awaitable[Engine]]
StartProcessor = Callable[..., Awaitable[tuple[Processor, str]]]
StartEnvoy = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def engine() -> AsyncIterator[StartEngine]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str, **behaviour: Any) -> Engine:
            started = Engine(name, **behaviour)
            await started.start()
            stack.push_async_callback(started.stop)
            return started

        yield start


@pytest.fixture(params=["native", "grpcio"])
def edge(request: pytest.FixtureRequest) -> ServerName:
    """The code that serves gRPC: a test of a processor runs on both."""
    name: ServerName = request.param
    return name


@pytest.fixture
async def processor(edge: ServerName) -> AsyncIterator[StartProcessor]:
    """Starts a processor that sends requests to the given addresses; gives it and its own address."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *destinations: str, address: str | None = None, hangs: bool = False, reads: bool = True
        ) -> tuple[Processor, str]:
            started = Processor(destinations, hangs=hangs, reads=reads, edge=edge)
            where = address or f"127.0.0.1:{free_ports(1)[0]}"
            await started.start(where)
            stack.push_async_callback(started.stop)
            return started, where

        yield start


@contextlib.contextmanager
def _held_port() -> Iterator[str]:
    """Bound, and nobody listens: connections are refused for as long as it is held."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def dead_address() -> Iterator[str]:
    """Of a sidecar that is down."""
    with _held_port() as address:
        yield address


@pytest.fixture
def dead_engine() -> Iterator[str]:
    with _held_port() as address:
        yield address


@pytest.fixture
async def envoy(dead_address: str) -> AsyncIterator[StartEnvoy]:
    """Starts Envoy for these engine addresses. Without `sidecar` the sidecar is down; one that listens is asked."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *engines: str, sidecar: str = dead_address, mode: Mode = "buffered", workers: int = 1, **gateway: int
        ) -> Gateway:
            listen_port, admin_port = free_ports(2)
            # A busy machine may keep the processor waiting for a while: that is no processor that hangs.
            gateway = {"processor_timeout_ms": 30_000} | gateway
            config = Config.model_validate(
                {
                    "listen": {"grpc": sidecar},
                    "gateway": {"listen": f"127.0.0.1:{listen_port}", "endpoints": "static", **gateway},
                    "pool": {"endpoints": [{"address": address, "model": "m"} for address in engines]},
                }
            )
            tree = bootstrap(config, admin_address=f"127.0.0.1:{admin_port}", mode=mode)
            process = await stack.enter_async_context(EnvoyProcess(tree, concurrency=workers, ready_within_s=WITHIN_S))
            client = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S), auto_decompress=False)
            )
            if _listens(sidecar):
                await until_healthy(client, process)
            return Gateway(process, f"http://127.0.0.1:{listen_port}", client)

        yield start


def _listens(address: str) -> bool:
    path = address.removeprefix("unix:")
    family, where = (socket.AF_INET, host_and_port(address)) if path == address else (socket.AF_UNIX, path)
    with socket.socket(family) as probe:
        return probe.connect_ex(where) == 0


async def until_healthy(client: aiohttp.ClientSession, process: EnvoyProcess) -> None:
    """Wait until Envoy finds the processor healthy. Its first check fails where a busy machine is slow to answer it."""

    async def is_healthy() -> bool:
        async with client.get(f"{process.admin_url}/clusters") as answer:
            lines = (await answer.text()).splitlines()
        return any(line.startswith(f"{SIDECAR_CLUSTER}::") and line.endswith("health_flags::healthy") for line in lines)

    await until(is_healthy, "Envoy's health check of the processor has passed")


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        yield session
