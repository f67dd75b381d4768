"""What is measured: simulated engines for the whole benchmark, and a sidecar and a real Envoy anew for each run.

A new sidecar knows nothing of the run before: no prefixes, no sessions, no learned constants. The engines stay and
forget their prompts, so that each policy starts cold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.gateway.process import until_advised
from fairlead.processes import Child, free_ports, python_module
from fairlead.tasks import all_of

MODEL: Final = "bench-model"
ENGINES: Final = 4
KV_TOKENS: Final = 32768  # of an engine: less than the sessions that are open need, so that engines evict
PREFILL_MS_PER_TOKEN: Final = 0.2
DECODE_MS_PER_TOKEN: Final = 12.0
TIME_SCALE: Final = 3.0  # how much faster than these the engines run


class Engines:
    """Simulated engines, each a process of its own."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)

    async def forget_prompts(self) -> None:
        async with aiohttp.ClientSession() as http:
            for address in self.addresses:
                async with http.post(f"http://{address}/reset_prefix_cache") as response:
                    response.raise_for_status()


@asynccontextmanager
async def running_engines(folder: Path) -> AsyncIterator[Engines]:
    async with AsyncExitStack() as stack:
        ports = free_ports(ENGINES)
        children = [Child(f"the engine at {port}", _engine(port), folder / f"engine-{port}.log") for port in ports]
        for child in children:
            await stack.enter_async_context(child)
        await all_of(*[c.until_ready(f"http://127.0.0.1:{p}/health") for c, p in zip(children, ports, strict=True)])
        yield Engines([f"127.0.0.1:{port}" for port in ports])


@asynccontextmanager
async def running_front(engines: Engines, policy: str, folder: Path) -> AsyncIterator[str]:
    """The URL of an Envoy that asks a sidecar with `policy`."""
    grpc, admin, gateway, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
    path = folder / "fairlead.yaml"
    document = configuration(engines.addresses, policy) | {
        "listen": {"grpc": grpc, "admin": admin},
        "gateway": {"listen": gateway, "processor_timeout_ms": 10_000},  # a busy moment is no decision to leave out
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    serve = python_module("fairlead", "serve", "--config", str(path))
    async with (
        Child("the sidecar", serve, folder / "sidecar.log") as sidecar,
        EnvoyProcess(bootstrap(load(path), admin_address=envoy_admin)),
    ):
        await sidecar.until_ready(f"http://{admin}/readyz")
        await until_advised(f"http://{gateway}")
        yield f"http://{gateway}"


def configuration(addresses: Sequence[str], policy: str) -> dict[str, Any]:
    """The same for every policy: the constants that an operator has measured on one idle engine, and defaults."""
    return {
        "pool": {
            "endpoints": [{"address": address, "model": MODEL} for address in addresses],
            "models": {
                MODEL: {
                    "prefill_ms_per_token": PREFILL_MS_PER_TOKEN / TIME_SCALE,
                    "decode_ms_per_token": DECODE_MS_PER_TOKEN / TIME_SCALE,
                }
            },
        },
        "policy": {"name": policy},
    }


def _engine(port: int) -> tuple[str, ...]:
    return python_module(
        *("fairlead", "engine"),
        *("--model", MODEL),
        *("--listen", f"127.0.0.1:{port}"),
        *("--prefill-ms-per-token", str(PREFILL_MS_PER_TOKEN)),
        *("--decode-ms-per-token", str(DECODE_MS_PER_TOKEN)),
        *("--kv-tokens", str(KV_TOKENS)),
        *("--time-scale", str(TIME_SCALE)),
    )
