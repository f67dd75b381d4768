"""A pool that changes under load, through a real Envoy and a real kube-apiserver: `python -m tests.kubernetes.changes`.

Engines are pods whose addresses are of 127/8; the tests are their kubelet. Clients ask all the time. Each change prints
how many requests were sent and lost, how long it took until a new engine served and until a gone one was last given a
request (median and worst), and the sidecar's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from aiohttp import web

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import free_ports
from tests.kubernetes.cluster import Cluster, Namespace
from tests.kubernetes.test_source import READER, kubeconfig

WORKERS: Final = 8
ANSWER_S: Final = 0.05
WITHIN_S: Final = 120.0
MODEL: Final = "m"


@dataclass
class Engine:
    """A pod and its server."""

    name: str
    ip: str
    server: web.TCPSite | None = None
    connections: set[asyncio.BaseTransport] = field(default_factory=set)
    ready_s: float = 0.0  # when its pod became ready
    left_s: float = 0.0  # when its pod stopped being ready, or began to end
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def served_after_s(self) -> float:
        return self.first_s - self.ready_s

    @property
    def last_chosen_after_s(self) -> float:
        return max(0.0, self.last_s - self.left_s)


@dataclass
class Row:
    what: str
    sent: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    unadvised: int = 0  # answers that the sidecar had no part in
    new: list[Engine] = field(default_factory=list)
    gone: list[Engine] = field(default_factory=list)
    rss_mib: float = 0.0

    def __str__(self) -> str:
        new = median_and_worst([engine.served_after_s for engine in self.new])
        gone = median_and_worst([engine.last_chosen_after_s for engine in self.gone])
        lost = self.lost.total()
        return f"| {self.what} | {self.sent} | {lost} | {self.unadvised} | {new} | {gone} | {self.rss_mib:.0f} |"


HEADING: Final = (
    "| change | requests | lost | unadvised | new engine serves: median, worst ms | "
    "gone one last chosen: median, worst ms | sidecar MiB |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


class Sidecar:
    """A process that may be killed and started again."""

    def __init__(self, config: Path, admin: str) -> None:
        self._config = config
        self._admin = admin
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [sys.executable, "-m", "fairlead", "serve", "--config", str(self._config)]
        with (self._config.parent / "sidecar.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def until(self, page: str, client: aiohttp.ClientSession) -> None:
        """`healthz` or `readyz` answers 200."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(f"http://{self._admin}/{page}") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.05)


class World:
    """The pool, its clients, and what may happen to it."""

    def __init__(
        self, namespace: Namespace, port: int, url: str, sidecar: Sidecar, client: aiohttp.ClientSession
    ) -> None:
        self.namespace = namespace
        self.url = url
        self.engines: dict[str, Engine] = {}
        self._port = port
        self.sidecar = sidecar
        self._client = client
        self._made = 0
        self._by_ip: dict[str, Engine] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._health)
        app.router.add_post("/v1/completions", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def add(self, count: int, row: Row | None = None) -> list[Engine]:
        """New pods, each ready as soon as it listens."""
        added = []
        for _ in range(count):
            self._made += 1
            engine = Engine(f"vllm-{self._made}", f"127.1.{self._made // 250}.{1 + self._made % 250}")
            site = web.TCPSite(self._runner, engine.ip, self._port)  # type: ignore[arg-type]
            await site.start()
            engine.server = site
            self.engines[engine.name] = self._by_ip[engine.ip] = engine
            await asyncio.to_thread(self.namespace.pod, engine.name, engine.ip, ready=False)
            engine.ready_s = time.monotonic()
            await asyncio.to_thread(self.namespace.status, engine.name, ready=True)
            added.append(engine)
        if row is not None:
            row.new += added
        return added

    async def end(self, engine: Engine, row: Row | None = None, *, grace_s: float = 1.0) -> None:
        """As a kubelet does: terminating, the engine finishes, its port closes, the pod is gone."""
        engine.left_s = time.monotonic()
        await asyncio.to_thread(self.namespace.delete_pod, engine.name)
        if row is not None:
            row.gone.append(engine)
        await asyncio.sleep(grace_s)
        await self.close(engine)
        await asyncio.to_thread(self.namespace.remove_pod, engine.name)
        del self.engines[engine.name]

    async def close(self, engine: Engine) -> None:
        """Its process is killed."""
        assert engine.server is not None
        await engine.server.stop()
        for connection in engine.connections:
            connection.abort()  # type: ignore[attr-defined]

    async def during(self, what: str, change: Callable[[Row], Awaitable[None]]) -> Row:
        """Let clients ask while `change` happens."""
        row, stop = Row(what), asyncio.Event()
        asking = [asyncio.create_task(self._ask(row, stop)) for _ in range(WORKERS)]
        try:
            await asyncio.sleep(0.3)
            await change(row)
            await asyncio.sleep(0.3)
        finally:
            stop.set()
            await asyncio.gather(*asking)
        row.rss_mib = _rss_mib(self.sidecar.pid)
        return row

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - nothing to wait on
                await asyncio.sleep(0.01)

    async def _ask(self, row: Row, stop: asyncio.Event) -> None:
        while not stop.is_set():
            row.sent += 1
            try:
                async with self._client.post(
                    f"{self.url}/v1/completions", json={"model": MODEL, "prompt": f"{row.sent}"}
                ) as answer:
                    text = await answer.text()
                    if answer.status != 200:
                        row.lost[f"{answer.status} {text[:120]}"] += 1
                    elif "x-fairlead-decision" not in answer.headers:
                        row.unadvised += 1
            except aiohttp.ClientError as error:
                row.lost[type(error).__name__] += 1

    def _engine(self, request: web.Request) -> Engine:
        assert request.transport is not None
        engine = self._by_ip[request.transport.get_extra_info("sockname")[0]]
        engine.connections.add(request.transport)
        return engine

    async def _models(self, request: web.Request) -> web.Response:
        self._engine(request)
        listed = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 8192}
        return web.json_response({"object": "list", "data": [listed]})

    async def _health(self, request: web.Request) -> web.Response:
        self._engine(request)
        return web.Response()

    async def _answer(self, request: web.Request) -> web.Response:
        engine = self._engine(request)
        engine.last_s = time.monotonic()
        engine.first_s = engine.first_s or engine.last_s
        await asyncio.sleep(ANSWER_S)
        return web.json_response({"model": MODEL, "choices": [{"text": engine.name}], "usage": {"prompt_tokens": 1}})


@asynccontextmanager
async def world(namespace: Namespace, folder: Path) -> AsyncIterator[World]:
    """The sidecar and Envoy, with an InferencePool of no pod yet."""
    grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
    (port,) = free_ports(1)
    await asyncio.to_thread(namespace.pool, "llm", {"app": "vllm"}, [port])
    kubeconfig(folder, namespace, await asyncio.to_thread(namespace.account, "sidecar", READER))
    path = folder / "fairlead.yaml"
    document: dict[str, Any] = {
        "listen": {"grpc": grpc, "admin": admin},
        "gateway": {"listen": listen},
        "discovery": {"kubernetes": {"inference_pool": "llm", "kubeconfig": "kubeconfig"}},
    }
    path.write_text(yaml.safe_dump(document))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), connector=aiohttp.TCPConnector(limit=0))
        )
        sidecar = Sidecar(path, admin)
        stack.callback(sidecar.kill)
        sidecar.start()
        await sidecar.until("healthz", client)
        envoy = EnvoyProcess(bootstrap(load(path), admin_address=envoy_admin), log_path=folder / "envoy.log")
        await stack.enter_async_context(envoy)
        made = World(namespace, port, f"http://{listen}", sidecar, client)
        await made.start()
        stack.push_async_callback(made.stop)
        await made.add(2)
        async with asyncio.timeout(WITHIN_S):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.post(
                        f"{made.url}/v1/completions", json={"model": MODEL, "prompt": "x"}
                    ) as answer:
                        if answer.status == 200 and "x-fairlead-decision" in answer.headers:
                            break
                await asyncio.sleep(0.05)
        yield made


async def scale(world: World, row: Row, to: int) -> None:
    missing = to - len(world.engines)
    if missing > 0:
        added = await world.add(missing, row)
        await world.until(lambda: all(engine.first_s for engine in added))
    else:
        await asyncio.gather(*(world.end(engine, row) for engine in list(world.engines.values())[:-missing]))


async def replace_all(world: World, row: Row) -> None:
    """A rolling update with one pod more."""
    for old in list(world.engines.values()):
        (new,) = await world.add(1, row)
        await world.until(lambda new=new: new.first_s)  # type: ignore[misc]
        await world.end(old, row, grace_s=0.5)


async def lose_node(world: World, row: Row) -> None:
    """A pod's ports are closed from one moment to the next; the API learns it later."""
    engine = next(iter(world.engines.values()))
    engine.left_s = time.monotonic()
    row.gone.append(engine)
    await world.close(engine)
    await asyncio.sleep(2.0)
    await asyncio.to_thread(world.namespace.status, engine.name, ready=False)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(world.namespace.delete_pod, engine.name)
    await asyncio.to_thread(world.namespace.remove_pod, engine.name)
    del world.engines[engine.name]


async def lose_api_server(world: World, row: Row) -> None:
    """Killed, and while it is away etcd forgets the past: 410 Gone for whoever goes on from there."""
    cluster = world.namespace.cluster
    cluster.stop()
    await asyncio.to_thread(cluster.forget_history)
    await asyncio.sleep(2.0)
    cluster.launch()
    await asyncio.to_thread(cluster.wait)
    await scale(world, row, len(world.engines) + 1)


async def lose_rights(world: World, row: Row) -> None:
    """A restart of the API server ends the watch; the next one is refused."""
    cluster = world.namespace.cluster
    await asyncio.to_thread(world.namespace.allow, "sidecar", [])
    cluster.stop()
    cluster.launch()
    await asyncio.to_thread(cluster.wait)
    await asyncio.sleep(2.0)
    await asyncio.to_thread(world.namespace.allow, "sidecar", READER)
    await scale(world, row, len(world.engines) + 1)


async def lose_sidecar(world: World, row: Row) -> None:
    """Killed; two engines come and one goes before it is back."""
    world.sidecar.kill()
    (oldest, *_) = world.engines.values()
    added = await world.add(2, row)
    await world.end(oldest, grace_s=2.0)
    back_s = time.monotonic()
    for engine in added:
        engine.ready_s = back_s  # to the sidecar
    world.sidecar.start()
    await world.until(lambda: all(engine.first_s for engine in added))


async def change_often(world: World, row: Row, changes: int) -> None:
    """Pods whose readiness comes and goes."""
    names = list(world.engines)[1:]
    for number in range(changes):
        name, ready = names[number % len(names)], bool(number // len(names) % 2)
        await asyncio.to_thread(world.namespace.status, name, ready=ready)
    for name in names:
        await asyncio.to_thread(world.namespace.status, name, ready=True)
    del row


STEPS: Final[Sequence[tuple[str, Callable[[World, Row], Awaitable[None]]]]] = (
    ("2 -> 40 engines", lambda pool, row: scale(pool, row, 40)),
    ("40 -> 3", lambda pool, row: scale(pool, row, 3)),
    ("all three replaced, one after the other", replace_all),
    ("an engine's node gone", lose_node),
    ("API server killed, back after 2 s, etcd compacted (410); +1", lose_api_server),
    ("RBAC taken away, API server restarted, given back; +1", lose_rights),
    ("sidecar killed, 2 more and 1 gone meanwhile, back", lose_sidecar),
    ("1,000 changes of readiness", lambda pool, row: change_often(pool, row, 1000)),
    ("1,000 more", lambda pool, row: change_often(pool, row, 1000)),
)


async def rows(place: Path) -> AsyncIterator[Row]:
    """Each change, through an API server of its own below `place`."""
    with Cluster(place) as cluster:
        folder = place / "sidecar"
        folder.mkdir()
        async with world(cluster.namespace("changes"), folder) as pool:
            for what, change in STEPS:
                yield await pool.during(what, partial(change, pool))


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        print(HEADING, flush=True)
        async for row in rows(Path(place)):
            print(row, flush=True)
            for reason, count in row.lost.items():
                print(f"  lost {count}: {reason}", flush=True)


def median_and_worst(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.0f}, {1000 * max(seconds):.0f}" if seconds else ""


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    asyncio.run(main())
