"""What stands between client and upstream: Envoy alone, with the null processor, with Fairlead.

All variants are up at the same time and share one upstream; only the measured one gets requests. Each has an Envoy of
its own, started from the bootstrap that `fairlead envoy` writes; for Envoy alone the processor's filter is taken out.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

import yaml

from fairlead.config import Config
from fairlead.extproc.grpc_core import EXPERIMENTS
from fairlead.extproc.server import ServerName
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import Child, free_ports
from fairlead.tools.bench.decision import MODEL, ROUTE
from fairlead.tools.bench.processes import addresses_of, child

ALONE: Final = "Envoy alone"
NULL: Final = "null processor"
NULL_GRPCIO: Final = "null processor, grpcio"
FAIRLEAD: Final = "Fairlead"
FAIRLEAD_GRPCIO: Final = "Fairlead, grpcio"
REWRITING: Final = "Fairlead, route"  # asked for a route: the body goes back with the chosen model's name
BY_SOCKET: Final = "Fairlead, unix socket"  # which Envoy and the sidecar are joined by, instead of a port
VARIANTS: Final = (ALONE, NULL, NULL_GRPCIO, FAIRLEAD, FAIRLEAD_GRPCIO, REWRITING, BY_SOCKET)

ENDPOINTS: Final = 8
_FALLBACKS: Final = 2
_PROCESSOR_TIMEOUT_MS: Final = 10_000  # a busy moment is to be measured as late, not to end a run


@dataclass(frozen=True, slots=True)
class Variant:
    """Where to send, what to ask for, and whose time to count."""

    name: str
    address: str
    model: str
    envoy_pid: int
    sidecar_pid: int | None
    admin: str | None = None  # of Fairlead


@dataclass(frozen=True, slots=True)
class World:
    """All that runs."""

    variants: tuple[Variant, ...]
    upstream: str  # one of its addresses, to measure it without Envoy
    upstream_pid: int


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """Start everything, and stop it when the block ends."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child("fairlead.tools.bench.upstream", str(ENDPOINTS)))
        addresses = await addresses_of(upstream)
        first = addresses[: 1 + _FALLBACKS]
        null = await stack.enter_async_context(child("fairlead.tools.bench.null_processor", "native", *first))
        (null_address,) = await addresses_of(null)
        setting = {"GRPC_EXPERIMENTS": EXPERIMENTS}
        grpcio = await stack.enter_async_context(
            child("fairlead.tools.bench.null_processor", "grpcio", *first, environment=setting)
        )
        (grpcio_address,) = await addresses_of(grpcio)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fairlead-bench-")))
        port_address, old_address = (f"127.0.0.1:{port}" for port in free_ports(2))
        socket_address = f"unix:{folder / 'fairlead.sock'}"
        sidecar, admin = await start_sidecar(stack, addresses, port_address, folder / "port.yaml")
        old_sidecar, old_admin = await start_sidecar(stack, addresses, old_address, folder / "grpcio.yaml", "grpcio")
        socket_sidecar, socket_admin = await start_sidecar(stack, addresses, socket_address, folder / "socket.yaml")
        alone, alone_at = await start_envoy(stack, addresses, port_address, has_processor=False)
        with_null, null_at = await start_envoy(stack, addresses, null_address)
        with_grpcio, grpcio_at = await start_envoy(stack, addresses, grpcio_address)
        with_fairlead, fairlead_at = await start_envoy(stack, addresses, port_address)
        with_old, old_at = await start_envoy(stack, addresses, old_address)
        with_socket, socket_at = await start_envoy(stack, addresses, socket_address)
        yield World(
            variants=(
                Variant(ALONE, alone_at, MODEL, alone.pid, None),
                Variant(NULL, null_at, MODEL, with_null.pid, null.pid),
                Variant(NULL_GRPCIO, grpcio_at, MODEL, with_grpcio.pid, grpcio.pid),
                Variant(FAIRLEAD, fairlead_at, MODEL, with_fairlead.pid, sidecar.pid, admin),
                Variant(FAIRLEAD_GRPCIO, old_at, MODEL, with_old.pid, old_sidecar.pid, old_admin),
                Variant(REWRITING, fairlead_at, ROUTE, with_fairlead.pid, sidecar.pid, admin),
                Variant(BY_SOCKET, socket_at, MODEL, with_socket.pid, socket_sidecar.pid, socket_admin),
            ),
            upstream=addresses[0],
            upstream_pid=upstream.pid,
        )


async def start_sidecar(
    stack: AsyncExitStack,
    addresses: list[str],
    listen: str,
    path: Path,
    server: ServerName = "native",
    sections: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Child, str]:
    """The sidecar, ready, with the address of its admin pages; `path` is where its configuration goes.

    `sections` are more of the configuration.
    """
    (admin_port,) = free_ports(1)
    document = _document(addresses, listen, admin_port) | dict(sections)
    document["listen"]["server"] = server
    _write(document, path)
    sidecar = await stack.enter_async_context(child("fairlead", "serve", "--config", str(path)))
    await sidecar.until_ready(f"http://127.0.0.1:{admin_port}/readyz")
    return sidecar, f"127.0.0.1:{admin_port}"


async def start_envoy(
    stack: AsyncExitStack, addresses: list[str], sidecar: str, *, has_processor: bool = True
) -> tuple[EnvoyProcess, str]:
    """Envoy, ready, with the address that it serves; `sidecar` is the address of the processor."""
    listen_port, admin_port = free_ports(2)
    listen = f"127.0.0.1:{listen_port}"
    config = Config.model_validate(_document(addresses, sidecar, admin_port) | {"gateway": _gateway(listen)})
    tree = bootstrap(config, admin_address=f"127.0.0.1:{admin_port}")
    if not has_processor:
        tree = _without_processor(tree)
    return await stack.enter_async_context(EnvoyProcess(tree, concurrency=1)), listen


def _write(document: dict[str, Any], path: Path) -> None:
    path.write_text(yaml.safe_dump(document))


def _document(addresses: list[str], sidecar: str, admin_port: int) -> dict[str, Any]:
    return {
        "listen": {"grpc": sidecar, "admin": f"127.0.0.1:{admin_port}"},
        "gateway": _gateway("127.0.0.1:8080"),
        "pool": {"endpoints": [{"address": address, "model": MODEL} for address in addresses]},
        "routes": {ROUTE: [MODEL]},
    }


def _gateway(listen: str) -> dict[str, Any]:
    return {
        "listen": listen,
        "fallbacks": _FALLBACKS,
        "endpoints": "static",  # no sidecar in some variants
        "processor_timeout_ms": _PROCESSOR_TIMEOUT_MS,
    }


def _without_processor(tree: dict[str, Any]) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    (chain,) = tree["static_resources"]["listeners"][0]["filter_chains"]
    manager = chain["filters"][0]["typed_config"]
    manager["http_filters"] = [f for f in manager["http_filters"] if f["name"] != "envoy.filters.http.ext_proc"]
    return tree
