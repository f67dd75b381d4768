"""Envoy reaches the processor over TLS, as gateways of the Gateway API insist."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.addresses import host_and_port
from fairlead.config import Config
from fairlead.edge.grpc import Health, Method
from fairlead.edge.server import Server
from fairlead.edge.tls import TlsFiles
from fairlead.extproc.server import PROCESS, SERVICE
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.gateway.parts import SIDECAR_CLUSTER
from fairlead.processes import free_ports
from tests.edge.certificates import Authority
from tests.gateway.conftest import Gateway, StartEngine, until_healthy
from tests.gateway.world import WITHIN_S, NativeCall, Processor, body_of

ServeTls = Callable[[TlsFiles, str], Any]


@pytest.fixture
async def serve() -> AsyncIterator[ServeTls]:
    """A processor on the edge of our own, with TLS, that sends all to one address; gives it and its own address."""
    servers: list[Server] = []

    async def start(tls: TlsFiles, destination: str) -> tuple[Processor, str]:
        processor, health = Processor((destination,)), Health((SERVICE,))
        methods = {PROCESS: Method(lambda call: NativeCall(call, processor)), **health.methods()}
        server = Server(methods, max_message_bytes=1 << 20, report_fault=pytest.fail, tls=tls)
        port = await server.start("127.0.0.1:0")
        health.set((SERVICE,), serving=True)
        servers.append(server)
        return processor, f"127.0.0.1:{port}"

    yield start
    for server in servers:
        await server.drain(0)


def with_tls(tree: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """Envoy's bootstrap with TLS to the processor's cluster."""
    (cluster,) = [each for each in tree["static_resources"]["clusters"] if each["name"] == SIDECAR_CLUSTER]
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    typed = {"@type": kind, "sni": "fairlead", "common_tls_context": {"alpn_protocols": ["h2"], **context}}
    cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": typed}
    return tree


def as_ai_gateway_does(tree: dict[str, Any]) -> dict[str, Any]:
    """TLS to the processor as Envoy AI Gateway and kgateway write it: no SNI, no ALPN, and nothing is verified."""
    (cluster,) = [each for each in tree["static_resources"]["clusters"] if each["name"] == SIDECAR_CLUSTER]
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    typed = {"@type": kind, "common_tls_context": {"validation_context": {}}}
    cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": typed}
    return tree


def envoy_in_front(engines: list[str], sidecar: str, context: dict[str, Any] | None) -> tuple[EnvoyProcess, str]:
    """With None for the `context`: in full duplex, as gateways of the Gateway API have it."""
    listen, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = Config.model_validate(
        {
            "listen": {"grpc": sidecar},
            "gateway": {"listen": listen, "fallbacks": 0, "endpoints": "static"},
            "pool": {"endpoints": [{"address": address, "model": "m"} for address in engines]},
        }
    )
    if context is None:
        tree = as_ai_gateway_does(bootstrap(config, admin_address=admin, mode="full_duplex"))
    else:
        tree = with_tls(bootstrap(config, admin_address=admin), context)
    return EnvoyProcess(tree), f"http://{listen}"


def trusting(authority: Authority) -> dict[str, Any]:
    return {"validation_context": {"trusted_ca": {"filename": str(authority.path)}}}


@pytest.mark.parametrize("kind", ["files", "client certificate", "self-signed"])
async def test_requests_are_chosen_over_tls(
    engine: StartEngine, serve: ServeTls, client: Any, tmp_path: Path, kind: str
) -> None:
    first, second = await engine("first"), await engine("second")
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    files = {
        "files": TlsFiles(certificate, key),
        "client certificate": TlsFiles(certificate, key, authority.path),
        "self-signed": TlsFiles(),
    }[kind]
    context: dict[str, Any] = {} if kind == "self-signed" else trusting(authority)
    if kind == "client certificate":
        own, own_key = authority.issue("envoy")
        pair = {"certificate_chain": {"filename": str(own)}, "private_key": {"filename": str(own_key)}}
        context["tls_certificates"] = [pair]
    processor, address = await serve(files, second.address)
    process, url = envoy_in_front([first.address, second.address], address, context)
    async with process:
        gateway = Gateway(process, url, client)
        async with asyncio.timeout(WITHIN_S):
            while not processor.served:  # until Envoy's health check has passed
                await gateway.post()
        assert [(await gateway.post(b"x" * 100_000)).body for _ in range(5)] == [b"second"] * 5


async def test_envoy_refuses_a_processor_of_another_authority_and_requests_pass(
    engine: StartEngine, serve: ServeTls, client: Any, tmp_path: Path
) -> None:
    first = await engine("first")
    ours, other = Authority(tmp_path), Authority(tmp_path / "other")
    processor, address = await serve(TlsFiles(*ours.issue("server")), first.address)
    process, url = envoy_in_front([first.address], address, trusting(other))
    async with process:
        answers = [await Gateway(process, url, client).post() for _ in range(10)]
    assert ([answer.status for answer in answers], processor.served) == ([200] * 10, [])


async def test_a_gateway_without_sni_alpn_and_verification_is_served_in_full_duplex_and_its_health_check_passes(
    engine: StartEngine, serve: ServeTls, client: Any
) -> None:
    first, second = await engine("first"), await engine("second")
    processor, address = await serve(TlsFiles(), second.address)
    process, url = envoy_in_front([first.address, second.address], address, None)
    async with process:
        gateway = Gateway(process, url, client)
        async with asyncio.timeout(WITHIN_S):
            await until_healthy(client, process)
            while not processor.served:
                await gateway.post()
        for size in (10, 100_000, 1_000_000):
            body = body_of(size)
            answer = await gateway.post(body)
            assert (answer.status, answer.body, second.received[-1].body == body) == (200, b"second", True)


async def test_a_certificate_is_replaced_while_requests_are_chosen(
    engine: StartEngine, serve: ServeTls, client: Any, tmp_path: Path
) -> None:
    """As the kubelet renews a Secret: the files are another folder's from one moment to the next."""
    first, second = await engine("first"), await engine("second")
    authority = Authority(tmp_path)
    folders = []
    for name in ("old", "new"):
        folder = tmp_path / name
        folder.mkdir()
        for issued, kept in zip(authority.issue(name), ("tls.crt", "tls.key"), strict=True):
            issued.rename(folder / kept)
        folders.append(folder)
    current = tmp_path / "current"
    current.symlink_to(folders[0])
    processor, address = await serve(TlsFiles(current / "tls.crt", current / "tls.key"), second.address)
    process, url = envoy_in_front([first.address, second.address], address, None)
    async with process:
        gateway = Gateway(process, url, client)
        async with asyncio.timeout(WITHIN_S):
            while not processor.served:
                await gateway.post()
            (tmp_path / "next").symlink_to(folders[1])
            (tmp_path / "next").rename(current)
            renewed = (folders[1] / "tls.crt").read_text()
            while await asyncio.to_thread(ssl.get_server_certificate, host_and_port(address)) != renewed:
                answer = await gateway.post()
                assert (answer.status, answer.body) == (200, b"second")
        assert [(await gateway.post()).body for _ in range(5)] == [b"second"] * 5
