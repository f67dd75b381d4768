"""`stack(...)`: engines, the sidecar as its own process, and a real Envoy, started for a test and stopped with it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, Mode, bootstrap
from fairlead.processes import free_ports
from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine

WITHIN_S = 60.0  # ends a test that would hang; what a test waits for comes in milliseconds
STARTS_WITHIN_S = 240.0  # the same; beside the lab's engines a start of two seconds was seen to take more than sixty


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def cached_share(self) -> float:
        """Of the prompt's tokens, as the engine reports them."""
        usage = self.json()["usage"]
        return float(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])


class Stack:
    """A running pool. `url` is the gateway; engines keep the order in which they were asked for."""

    def __init__(self, folder: Path, engines: Sequence[RunningEngine], options: Sequence[EngineOptions]) -> None:
        grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
        self.engines, self.options = engines, options
        self.url, self.admin_url, self.envoy_admin = f"http://{listen}", f"http://{admin}", envoy_admin
        self.config_path = folder / "fairlead.yaml"
        self.token_path = folder / "admin.token"
        self.token_path.write_text("t" * 48, encoding="utf-8")
        self.document: dict[str, Any] = {
            "listen": {"grpc": grpc, "admin": admin, "drain_s": 5, "admin_token_file": "admin.token"},
            # A busy machine may keep the sidecar waiting for a while: that is no sidecar that hangs.
            "gateway": {"listen": listen, "processor_timeout_ms": 10_000},
            "pool": {
                "endpoints": [
                    {"address": engine.address, "model": option.model, "engine": option.kind}
                    | _kv_transfer(engine, option)
                    for engine, option in zip(engines, options, strict=True)
                ]
            },
            # The engines share the test's event loop, which a busy machine stops for a while: that is no failed probe.
            "observe": {"interval_ms": 100, "timeout_ms": 10_000, "failures_to_eject": 2},
        }
        self.sidecar: subprocess.Popen[bytes] | None = None
        self.log_path = folder / "sidecar.log"
        self.client: aiohttp.ClientSession

    def write(self, **sections: Any) -> None:
        """Write the configuration with these sections changed, all at once."""
        self.document |= sections
        fresh = self.config_path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(self.document), encoding="utf-8")
        fresh.replace(self.config_path)

    async def start_sidecar(self) -> None:
        with self.log_path.open("ab") as log:
            command = [sys.executable, "-X", "faulthandler", "-m", "fairlead", "serve"]
            self.sidecar = subprocess.Popen(  # noqa: ASYNC220 - it only starts
                [*command, "--config", str(self.config_path)], stdout=log, stderr=log
            )
        try:
            await self.until(self.is_ready, "the sidecar is ready", STARTS_WITHIN_S)
        except AssertionError:  # where it hangs is in its log then
            self.stop_sidecar(signal.SIGABRT)
            raise AssertionError(f"the sidecar is not ready:\n{self.log()}") from None

    def stop_sidecar(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.sidecar is not None
        self.sidecar.send_signal(number)
        return self.sidecar.wait(timeout=WITHIN_S)

    def end(self) -> None:
        if self.sidecar is not None:
            self.sidecar.kill()
            self.sidecar.wait()

    async def is_ready(self) -> bool:
        assert self.sidecar is not None
        assert self.sidecar.poll() is None, f"the sidecar ended:\n{self.log()}"
        try:
            async with self.client.get(f"{self.admin_url}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def advises(self) -> bool:
        """Whether Envoy asks the sidecar, which alone answers for the models of the pool, and has an engine."""
        models = await self.ask("GET", "/v1/models")
        return b'"owned_by":"fairlead"' in models.body and (await self.ask("GET", "/version")).status != 503

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, within_s: float = WITHIN_S) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not await condition():  # noqa: ASYNC110 - another process cannot set an event of ours
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not so within {within_s:g} s: {what}\n{self.log()}") from None

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with self.client.request(method, self.url + path, data=body, headers=headers) as response:
            lower = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, lower, await response.read())

    async def chat(self, content: str = "hello", *, headers: Mapping[str, str] | None = None, **body: Any) -> Answer:
        document = {"model": "auto", "messages": [{"role": "user", "content": content}], "max_tokens": 4} | body
        return await self.ask("POST", "/v1/chat/completions", msgspec.json.encode(document), headers)

    async def last_request(self, engine: int) -> dict[str, Any]:
        async with self.client.get(f"http://{self.engines[engine].address}/last-request") as response:
            return dict(await response.json())

    async def fault(self, engine: int, **fault: Any) -> None:
        async with self.client.post(f"http://{self.engines[engine].address}/fault", json=fault) as response:
            assert response.status == 200, await response.text()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        async with self.client.get(f"{self.admin_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        mine = [line for line in lines if line.split("{")[0].split(" ")[0] == name and all(w in line for w in wanted)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in mine)

    async def at_rest(self) -> None:
        """Wait until no request is in flight: the end of a response reaches the client before the sidecar."""

        async def idle() -> bool:
            return await self.metric("fairlead_inflight_requests") == 0

        await self.until(idle, "no request is in flight")

    async def has_reloaded(self) -> bool:
        return "configuration reloaded" in self.log()

    async def has_ejected_the_first(self) -> bool:
        return await self.metric("fairlead_endpoint_up", endpoint=self.engines[0].address) == 0

    async def decisions(self) -> list[dict[str, Any]]:
        async with self.client.get(f"{self.admin_url}/debug/decisions") as response:
            return list((await response.json())["decisions"])


def _kv_transfer(engine: RunningEngine, option: EngineOptions) -> dict[str, Any]:
    if engine.exchange is None or option.kv is None:
        return {}
    if option.kv.connector == "nixl":
        return {"kv_transfer": {"connector": "nixl"}}
    return {"kv_transfer": {"connector": "mooncake", "bootstrap": engine.exchange.address}}


Start = Callable[..., Awaitable[Stack]]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Start]:
    async with stacks(tmp_path) as start:
        yield start


@asynccontextmanager
async def stacks(parent: Path) -> AsyncIterator[Start]:
    """`await stack(EngineOptions(...), ..., mode=..., **sections of the configuration)`; the route `auto` is to all.

    `endpoints` adds to their entries in the configuration. With `beside=another` it is a second sidecar with its own
    Envoy in front of the other's engines.
    """
    async with AsyncExitStack() as cleanup:

        async def start(
            *options: EngineOptions,
            mode: Mode = "buffered",
            beside: Stack | None = None,
            endpoints: Sequence[Mapping[str, Any]] = (),
            **sections: Any,
        ) -> Stack:
            engines = [await cleanup.enter_async_context(running_engine(option)) for option in options]
            if beside is not None:
                engines, options = list(beside.engines), tuple(beside.options)
            folder = parent / ("second" if beside is not None else "first")
            folder.mkdir()
            running = Stack(folder, engines, options)
            running.client = await cleanup.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
            routes = {"auto": list(dict.fromkeys(option.model for option in options))}
            running.document["pool"]["models"] = sections.pop("models", {})
            for endpoint, more in zip(running.document["pool"]["endpoints"], endpoints, strict=False):
                endpoint |= more
            running.document["gateway"] |= sections.pop("gateway", {})
            running.write(**({"routes": routes} | sections))
            cleanup.callback(running.end)
            await running.start_sidecar()
            tree = bootstrap(load(running.config_path), admin_address=running.envoy_admin, mode=mode)
            await cleanup.enter_async_context(EnvoyProcess(tree, ready_within_s=STARTS_WITHIN_S))
            await running.until(running.advises, "Envoy asks the sidecar")
            await running.at_rest()  # so that a test which counts sees its own requests only
            return running

        yield start


def engine(model: str = "small", **more: Any) -> EngineOptions:
    return EngineOptions(model=model, time_scale=50.0, **more)
