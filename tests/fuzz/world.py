"""What is attacked: engines, a sidecar and an Envoy, all processes of their own; and what is measured of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import yaml

from fairlead.addresses import host_and_port
from fairlead.config import load
from fairlead.extproc.body_reader import MOST_READERS
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import Child, free_ports, python_module
from fairlead.tools.bench.processes import addresses_of, child, resident_bytes
from tests.fuzz.attacks import Target

_SETTLE_S = 60.0
_MODELS = ("small", "small", "large", "docs")
_LOAD = ("inflight_requests", "decoding_requests", "inflight_prompt_tokens", "pending_prefill_tokens")
_NEIGHBOUR_EVERY_S = 0.02
_LONG_BODY = b'{"model":"small","prompt":"%b"}' % (b"x" * (2 << 20))
_COUNTED_OUT = ("le", "tenth")  # parts of one metric, which come all at once
_LABEL_OR_NAME = re.compile(r'^# TYPE (?P<name>\w+)|[{,](?P<label>\w+)="(?P<value>(?:[^"\\]|\\.)*)"', re.MULTILINE)


@dataclass
class Neighbour:
    """A client that does everything right, through Envoy."""

    url: str
    waits_ms: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    async def ask_until(self, stop: asyncio.Event) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
            while not stop.is_set():
                number = len(self.waits_ms)
                started_s = time.perf_counter()
                await self._ask(client, ("small", "auto", "large")[number % 3], f"neighbour {number}")
                self.waits_ms.append((time.perf_counter() - started_s) * 1e3)
                await asyncio.sleep(_NEIGHBOUR_EVERY_S)

    async def _ask(self, client: aiohttp.ClientSession, model: str, text: str) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        headers = {"x-session-id": f"neighbour-{len(self.waits_ms) % 20}"}
        try:
            async with client.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                said = await answer.read()
                if answer.status != 200:
                    self.lost.append(f"a neighbour's request for {model}: {answer.status} {said[:200]!r}")
                elif "x-fairlead-decision" not in answer.headers:
                    self.lost.append(f"a neighbour's request for {model} passed without advice")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.lost.append(f"a neighbour's request for {model}: {error!r}")


@dataclass(frozen=True)
class Reading:
    """Of the sidecar at rest."""

    kept_bytes: int  # resident, with the freed memory that `serving.memory` keeps
    resident_bytes: int  # without it
    blocks: int  # of Python's allocator that are in use
    readers_bytes: int  # resident, of the processes that read long bodies
    label_values: frozenset[str]  # see `label_values`
    faults: list[str]  # anything that must not be
    entries: dict[str, str]  # of small caches, and the most that they may have
    where: list[str]  # memory was allocated, if the sidecar traces that


class World:
    def __init__(self, sidecar: Child, log: Path, told: Path, admin: str, listen: str, grpc: str) -> None:
        self.sidecar = sidecar
        self.target = Target(host_and_port(grpc), host_and_port(listen))
        self.neighbour = Neighbour(f"http://{listen}")
        self._log, self._log_read, self._told = log, 0, told
        self._admin = f"http://{admin}"
        self._failures: Counter[str] = Counter()

    async def read(self) -> Reading:
        """Once the sidecar has come to rest; no one may be sending."""
        faults: list[str] = []
        metrics = ""
        try:
            async with aiohttp.ClientSession() as client:
                await self._ask_each_reader(client)
                faults += await self._not_at_rest(client)
                metrics = await self._get(client, "/metrics")
        except aiohttp.ClientError as error:
            faults.append(f"the admin port does not answer: {error!r}")
        faults += self._risen(metrics)
        faults += self._logged()
        if not self.sidecar.is_running:
            status = await self.sidecar.wait()
            faults.append(f"the sidecar has ended with status {status}; its log ends:\n{self.sidecar.log_tail()}")
            return Reading(0, 0, 0, 0, frozenset(), faults, {}, [])
        readers = sum(map(resident_bytes, children_of(self.sidecar.pid)))
        kept = resident_bytes(self.sidecar.pid)
        told = await self._trimmed()
        trimmed = resident_bytes(self.sidecar.pid)
        return Reading(
            kept, trimmed, told["blocks"], readers, label_values(metrics), faults, told["entries"], told["where"]
        )

    async def _ask_each_reader(self, client: aiohttp.ClientSession) -> None:
        """The same of each: what a reading process keeps of its last answer, up to 20 MiB, is no growth."""
        for _ in range(MOST_READERS):  # they take turns
            async with client.post(f"{self.neighbour.url}/v1/completions", data=_LONG_BODY) as answer:
                await answer.read()

    async def _not_at_rest(self, client: aiohttp.ClientSession) -> list[str]:
        until_s = time.monotonic() + _SETTLE_S
        while left := await self._left(client):
            if time.monotonic() > until_s:
                return [f"load that nobody has is still counted after {_SETTLE_S:g} s: {left}"]
            await asyncio.sleep(0.05)
        return []

    def _risen(self, metrics: str) -> list[str]:
        """Counts of failures that are higher than they were."""
        samples = (line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("fairlead_failures_total"))
        failures = Counter({name: int(float(value)) for name, value in samples})
        risen, self._failures = failures - self._failures, failures
        return [f"{name} rose by {count}" for name, count in risen.items()]

    async def _trimmed(self) -> dict[str, Any]:
        """What `tests.fuzz.sidecar` tells once it has given freed memory back."""
        self._told.unlink(missing_ok=True)
        os.kill(self.sidecar.pid, signal.SIGUSR2)
        async with asyncio.timeout(_SETTLE_S):
            while not self._told.exists():  # noqa: ASYNC110 - another process sets no event of ours
                await asyncio.sleep(0.02)
        told: dict[str, Any] = json.loads(self._told.read_text())
        return told

    async def _left(self, client: aiohttp.ClientSession) -> dict[str, Any]:
        """What is counted as in flight."""
        page = json.loads(await self._get(client, "/debug/endpoints"))
        status = json.loads(await self._get(client, "/debug/status"))
        left = {f"{each['address']} {key}": each[key] for each in page["endpoints"] for key in _LOAD if each[key]}
        return left | ({"streams": status["running_streams"]} if status["running_streams"] else {})

    async def _get(self, client: aiohttp.ClientSession, path: str) -> str:
        async with client.get(self._admin + path) as answer:
            return await answer.text()

    def _logged(self) -> list[str]:
        """Lines of the log since the last time that tell of an exception or an error."""
        text = self._log.read_bytes()[self._log_read :].decode(errors="replace")
        self._log_read += len(text.encode())
        bad = (
            "Traceback",
            '"level": "error"',
            '"level": "critical"',
            "Exception",
            "Task was destroyed",
            "never awaited",
        )
        return [f"the log says: {line[:3000]}" for line in text.splitlines() if any(word in line for word in bad)][:5]


@asynccontextmanager
async def running(settings: Callable[[dict[str, Any]], None] = lambda _: None) -> AsyncIterator[World]:
    """Tables of the sidecar are small, so that they are full after the warm-up: what grows then is a leak."""
    with TemporaryDirectory(prefix="fairlead-fuzz-") as name:
        folder = Path(name)
        async with child("tests.fuzz.engine", str(len(_MODELS))) as engine:
            addresses = await addresses_of(engine)
            grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
            judge = {"url": f"http://{addresses[3]}", "model": "grader"}
            document: dict[str, Any] = {
                "listen": {"grpc": grpc, "admin": admin, "drain_s": 5},
                "gateway": {"listen": listen, "processor_timeout_ms": 30_000},
                "pool": {"endpoints": [{"address": a, "model": m} for a, m in zip(addresses, _MODELS, strict=True)]},
                "routes": {
                    "auto": ["small", "large"],
                    "answer": {"cascade": ["small", "large"], "thresholds": [50], "judge": judge},
                },
                "reuse": {"docs": {"always": ["order", "dedup"]}},
                "sessions": {"headers": ["x-session-id"], "max_entries": 500},
                "prefixes": {"max_bytes": 1 << 20},
                "tenants": {"header": "x-tenant", "vouched_by": "nobody: this is a fuzz"},
            }
            settings(document)
            path, log, told = folder / "fairlead.yaml", folder / "sidecar.log", folder / "memory.json"
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            sidecar = Child(
                "the sidecar", python_module("tests.fuzz.sidecar", str(told), "serve", "--config", str(path)), log
            )
            tree = bootstrap(load(path), admin_address=envoy_admin)
            async with sidecar, EnvoyProcess(tree, concurrency=1):
                await sidecar.until_ready(f"http://{admin}/readyz")
                world = World(sidecar, log, told, admin, listen, grpc)
                await _advised(f"http://{listen}")
                yield world


async def _advised(url: str) -> None:
    """Until Envoy asks the sidecar."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as client:
        while True:
            async with client.get(f"{url}/v1/models") as answer:
                if b'"owned_by":"fairlead"' in await answer.read():
                    return
            await asyncio.sleep(0.05)


def label_values(metrics: str) -> frozenset[str]:
    """Each value that a label of /metrics has, and its metrics' names.

    Its series are products of these: a status at an endpoint by a route is a new one, which a leak is not and hours of
    fuzz still find. What a client or an engine could add without bound is a value.
    """
    found = (each.group("name", "label", "value") for each in _LABEL_OR_NAME.finditer(metrics))
    return frozenset(name or f'{label}="{value}"' for name, label, value in found if label not in _COUNTED_OUT)


def children_of(pid: int) -> list[int]:
    """Processes that it has started, of any of its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found
