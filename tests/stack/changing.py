"""A pool that changes under load: simulated engines come and go behind a real Envoy that follows a real sidecar."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import free_ports
from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine
from tests.discovery.dns_server import DnsServer
from tests.waiting import WITHIN_S, until

SRV, HOST = "_http._tcp.example", "engines.example"


@dataclass
class Seen:
    """What the clients saw since the load began. Times are of `time.monotonic`."""

    statuses: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    first_s: dict[str, float] = field(default_factory=dict)  # the first answer, by endpoint
    last_sent_s: dict[str, float] = field(default_factory=dict)  # when the last request was sent that it answered
    unadvised: int = 0  # answers that the sidecar had no part in


class ChangingPool:
    """`lists` what discovery shall find; engines run until `stop` of them."""

    def __init__(
        self, folder: Path, stack: AsyncExitStack, client: aiohttp.ClientSession, dns: DnsServer | None = None
    ) -> None:
        self.folder = folder
        self.client = client
        self._dns = dns  # else a file lists the engines
        self.engines: dict[str, tuple[RunningEngine, AsyncExitStack]] = {}
        self.seen = Seen()
        self.envoy: EnvoyProcess
        self._stack = stack
        self._sidecar: subprocess.Popen[bytes] | None = None
        grpc, admin, listen, self._envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
        self.url, self.admin_url = f"http://{listen}", f"http://{admin}"
        self.document: dict[str, Any] = {
            "listen": {"grpc": grpc, "admin": admin, "drain_s": 1},
            "gateway": {"listen": listen, "processor_timeout_ms": 10_000},
            "discovery": {"file": "engines.yaml"} if dns is None else _in(dns),
            "observe": {"timeout_ms": 10_000},  # the engines share an event loop with the clients
        }

    # ---- the parts ------------------------------------------------------------------------------------------------

    def write(self) -> Path:
        """Write the configuration, all at once."""
        new = self.folder / "fairlead.new"
        new.write_text(yaml.safe_dump(self.document))
        return new.replace(self.folder / "fairlead.yaml")

    async def start(self) -> None:
        self.write()
        await self.start_sidecar()
        await self.start_envoy()

    async def start_envoy(self) -> None:
        tree = bootstrap(load(self.folder / "fairlead.yaml"), admin_address=self._envoy_admin)
        self.envoy = await self._stack.enter_async_context(EnvoyProcess(tree, ready_within_s=WITHIN_S))
        await until(self._serves, "Envoy serves")

    async def start_sidecar(self) -> None:
        with (self.folder / "sidecar.log").open("ab") as log:
            command = [sys.executable, "-m", "fairlead", "serve", "--config", str(self.folder / "fairlead.yaml")]
            self._sidecar = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - it only starts
        await until(self._is_ready, "the sidecar is ready")

    def kill_sidecar(self) -> None:
        assert self._sidecar is not None
        self._sidecar.send_signal(signal.SIGKILL)
        self._sidecar.wait()

    def end(self) -> None:
        if self._sidecar is not None and self._sidecar.poll() is None:
            self.kill_sidecar()

    @property
    def pid(self) -> int:
        assert self._sidecar is not None
        return self._sidecar.pid

    async def _is_ready(self) -> bool:
        return (await self._get(f"{self.admin_url}/readyz"))[0] == 200

    async def _serves(self) -> bool:
        return (await self.post())[0] == 200

    async def _get(self, url: str) -> tuple[int, bytes]:
        try:
            async with self.client.get(url) as response:
                return response.status, await response.read()
        except aiohttp.ClientError:
            return 0, b""

    def log(self) -> str:
        return (self.folder / "sidecar.log").read_text()

    # ---- engines --------------------------------------------------------------------------------------------------

    async def add(self, count: int, model: str = "small", **options: Any) -> list[str]:
        """Run `count` more engines; they are not listed yet."""
        made = []
        for _ in range(count):
            stack = AsyncExitStack()
            engine = await stack.enter_async_context(
                running_engine(EngineOptions(model=model, time_scale=50.0, **options))
            )
            self.engines[engine.address] = engine, stack
            made.append(engine.address)
        return made

    async def stop(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            await self.engines.pop(address)[1].aclose()

    def lists(self, addresses: Iterable[str], draining: Iterable[str] = ()) -> float:
        """Let discovery find these; when that was written."""
        if self._dns is not None:
            self._dns.set(SRV, SRV=[f"0 0 {each.rpartition(':')[2]} {HOST}." for each in addresses])
            return time.monotonic()
        entries: list[Any] = [*addresses, *({"address": each, "draining": True} for each in draining)]
        new = self.folder / "engines.new"
        new.write_text(yaml.safe_dump(entries))
        written_s = time.monotonic()
        new.replace(self.folder / "engines.yaml")
        return written_s

    async def up(self) -> set[str]:
        """Endpoints that the sidecar may choose."""
        status, body = await self._get(f"{self.admin_url}/debug/endpoints")
        if status != 200:
            return set()
        return {each["address"] for each in msgspec.json.decode(body)["endpoints"] if each["healthy"]}

    async def known_to_envoy(self, cluster: str = "engines") -> set[str]:
        _, body = await self._get(f"{self.envoy.admin_url}/clusters?format=json")
        clusters = msgspec.json.decode(body)["cluster_statuses"]
        hosts = next(each.get("host_statuses", ()) for each in clusters if each["name"] == cluster)
        return {"{address}:{port_value}".format(**host["address"]["socket_address"]) for host in hosts}

    # ---- load -----------------------------------------------------------------------------------------------------

    async def ask(self, model: str) -> int:
        """The status of one request."""
        return (await self.post(model=model))[0]

    async def post(self, content: str = "hello", model: str = "small", **more: Any) -> tuple[int, str]:
        """The status of one request, and where it was served."""
        body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 4} | more
        try:
            async with self.client.post(f"{self.url}/v1/chat/completions", json=body) as response:
                answer = await response.text()
                where = response.headers.get("x-fairlead-endpoint", "")
                return response.status, where if response.status == 200 else f"{where} {answer}"
        except aiohttp.ClientError as error:
            return 0, repr(error)

    @asynccontextmanager
    async def load(self, clients: int = 8, models: Sequence[str] = ("small",)) -> AsyncIterator[Seen]:
        """Clients that ask for `models` one after another, each with prompts of its own."""
        numbers = itertools.count()

        async def ask() -> None:
            while True:
                number, sent_s = next(numbers), time.monotonic()
                content = f"question {number} " + "word " * (number % 50)
                status, where = await self.post(content, models[number % len(models)])
                self.seen.statuses[status] += 1
                if status != 200:
                    self.seen.lost.append(f"{status} {where}")
                elif where:
                    self.seen.first_s.setdefault(where, time.monotonic())
                    self.seen.last_sent_s[where] = max(sent_s, self.seen.last_sent_s.get(where, 0.0))
                else:
                    self.seen.unadvised += 1
                await asyncio.sleep(0.01)

        asking = [asyncio.create_task(ask()) for _ in range(clients)]
        try:
            yield self.seen
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


def _in(dns: DnsServer) -> dict[str, Any]:
    dns.set(HOST, A=["127.0.0.1"])
    return {"dns": [{"name": SRV}], "dns_servers": [dns.address]}


@asynccontextmanager
async def changing_pool(folder: Path, *, dns: bool = False) -> AsyncIterator[ChangingPool]:
    """`dns`: SRV records list the engines, else a file."""
    async with AsyncExitStack() as stack:
        server = DnsServer(ttl_s=1) if dns else None
        if server is not None:
            await server.start()
            stack.callback(server.stop)
        timeout = aiohttp.ClientTimeout(total=WITHIN_S)
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, connector=connector))
        pool = ChangingPool(folder, stack, client, server)
        stack.callback(pool.end)
        try:
            yield pool
        finally:
            await pool.stop(list(pool.engines))
