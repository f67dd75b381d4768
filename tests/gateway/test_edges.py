"""Paths that are not open, and what is not quite HTTP: a clear answer, with the sidecar there and without it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from fairlead.api.paths import GENERATION_PATHS
from fairlead.config import Config
from fairlead.gateway import EnvoyProcess, Mode, bootstrap
from fairlead.processes import free_ports
from tests.gateway.world import Engine, Processor

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = b'{"model": "m"}'


@dataclass
class Gateway:
    port: int
    engine: Engine

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to these bytes. Raises TimeoutError when none comes."""
        self.engine.received.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            async with asyncio.timeout(60):
                head = await reader.readuntil(b"\r\n\r\n")
                status, lengths = (
                    int(head[9:12]),
                    [line for line in head.lower().split(b"\r\n") if b"content-length" in line],
                )
                body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else await reader.read()
                return status, body
        finally:
            writer.close()

    async def post(
        self, path: str = "/v1/chat/completions", head: bytes = b"", version: bytes = b"1.1"
    ) -> tuple[int, bytes]:
        line = b"POST %s HTTP/%s\r\nhost: x\r\n" % (path.encode(), version)
        return await self.ask(line + head + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)


@contextlib.asynccontextmanager
async def started(*, advised: bool, mode: Mode = "buffered") -> AsyncIterator[Gateway]:
    async with contextlib.AsyncExitStack() as stack:
        engine = Engine("engine")
        await engine.start()
        stack.push_async_callback(engine.stop)
        listen, admin, sidecar = (f"127.0.0.1:{port}" for port in free_ports(3))
        processor = Processor([engine.address], shows=tuple(f"x-shown-{number}" for number in range(6)))
        if advised:
            await processor.start(sidecar)
            stack.push_async_callback(processor.stop)
        config = Config.model_validate(
            {
                "listen": {"grpc": sidecar},
                "gateway": {"listen": listen, "endpoints": "static", "paths": ["/v1/files", "/below/*"]},
                "pool": {"endpoints": [{"address": engine.address, "model": "m"}]},
            }
        )
        await stack.enter_async_context(EnvoyProcess(bootstrap(config, admin_address=admin, mode=mode)))
        gateway = Gateway(int(listen.rsplit(":")[-1]), engine)
        async with asyncio.timeout(60):
            while advised and not processor.served:
                await gateway.post()
        yield gateway


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["advised", "blind"])
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    async with started(advised=request.param == "advised") as gateway:
        yield gateway


OPEN = [
    *sorted(GENERATION_PATHS), "/v1/chat/completions/", "//v1//chat/completions", "/v1/chat/./completions",
    "/v1/x/../chat/completions", "/v1/chat/%63ompletions", "/v1/chat/completions?a=/../flush_cache",
    "/v1/rerank", "/rerank", "/v1/score", "/pooling", "/classify", "/tokenize", "/detokenize",
    "/v1/messages/count_tokens", "/v1/moderations", "/v1/audio/transcriptions", "/v1/images/generations",
    "/invocations", "/inference/v1/generate", "/v1/models", "/v1/models/org%2Fname", "/health", "/v1/files",
    "/below/any/thing",
]  # fmt: skip
CLOSED = [
    "/flush_cache", "/sleep", "/wake_up", "/reset_prefix_cache", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "/metrics", "/fault", "/", "/v1", "/server_info", "/update_weights_from_disk",
    "/abort_request", "/start_profile", "/collective_rpc", "/docs", "/openapi.json", "/v1/../flush_cache",
    "/v1/models/../../metrics", "/v1/models/%2e%2e/%2e%2e/metrics", "/v1/models/x%2F..%2F..%2F..%2Fmetrics",
    "/v1/models/%252e%252e/metrics", "/v1/models/..%5c..%5cmetrics", "/V1/models", "/v1/chat/completions;x",
    "/v1/chat/completionsx", "/v1/chat/completions/x", "/v1/files/x", "/below", "/%66lush_cache",
    "/below/%2e%2e/metrics", "/below/x%2f..%2f..%2fmetrics",
]  # fmt: skip


@pytest.mark.parametrize("path", OPEN)
async def test_the_inference_apis_and_what_was_added_are_open(gateway: Gateway, path: str) -> None:
    assert (await gateway.post(path))[0] == 200
    assert len(gateway.engine.received) == 1


@pytest.mark.parametrize("path", CLOSED)
async def test_all_other_paths_are_a_404_with_a_sentence(gateway: Gateway, path: str) -> None:
    status, body = await gateway.post(path)

    error = json.loads(body)["error"]
    assert (status, error["code"], gateway.engine.received) == (404, "unknown_path", [])
    assert "gateway.paths" in error["message"]


@pytest.mark.parametrize("head", [b"", b"connection: keep-alive\r\n"])
async def test_http_1_0_is_answered(gateway: Gateway, head: bytes) -> None:
    assert await gateway.post(head=head, version=b"1.0") == (200, b"engine")


async def test_http_1_0_without_a_host_is_answered(gateway: Gateway) -> None:
    assert await gateway.ask(b"GET /v1/models HTTP/1.0\r\n\r\n") == (200, b"engine")


def _headers(count: int) -> bytes:
    return b"".join(b"x-%d: v\r\n" % number for number in range(count))


NOT_HTTP = {
    "no host": (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
    "a fragment": (b"GET /v1/models#x HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "bytes of TLS": (b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n", 400),
    "a bad chunk": (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n", 400
    ),
    "two lengths": (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400
    ),
    "a header with a space in its name": (b"GET /v1/models HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n", 400),
    "an unknown coding": (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501
    ),
    "an upgrade": (
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n", 403
    ),
    "a tunnel": (b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n", 403),
    "250 headers": (b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + _headers(250) + b"\r\n", 431),
    "97 KiB of headers": (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 97 * 1024 + b"\r\n\r\n", 431),
    "1 MiB of headers": (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 1024 * 1024 + b"\r\n\r\n", 431),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_HTTP)
async def test_what_is_not_http_is_answered_in_openais_shape(gateway: Gateway, name: str) -> None:
    request, expected = NOT_HTTP[name]

    status, body = await gateway.ask(request)

    assert (status, json.loads(body)["error"]["type"]) == (expected, "invalid_request_error")
    assert gateway.engine.received == []


async def test_in_full_duplex_it_is_answered_too() -> None:
    async with started(advised=True, mode="full_duplex") as gateway:
        for name, (request, expected) in NOT_HTTP.items():
            status, body = await gateway.ask(request)
            assert (status, json.loads(body)["error"]["type"]) == (expected, "invalid_request_error"), name
        assert await gateway.post(version=b"1.0") == (200, b"engine")
        assert (await gateway.post("/flush_cache"))[0] == 404


@pytest.mark.parametrize("count", [97, 110, *range(180, 201)])
async def test_near_the_limit_of_headers_there_is_no_empty_500(gateway: Gateway, count: int) -> None:
    status, body = await gateway.post(head=_headers(count))

    # The engine of this test takes 128; from there on its own 400 is the answer.
    assert (status, body) == (200, b"engine") if count < 120 else status in (400, 431)
    assert status != 431 or _code(body) == "headers_too_large"


@pytest.mark.parametrize("missing_bytes", range(0, 800, 100))
async def test_near_the_limit_of_their_bytes_there_is_no_empty_500(gateway: Gateway, missing_bytes: int) -> None:
    status, body = await gateway.post(head=b"x: " + b"a" * (96 * 1024 - missing_bytes) + b"\r\n")

    assert status in (400, 431)
    assert status != 431 or _code(body) == "headers_too_large"


@pytest.mark.parametrize("count", [50, 110, *range(180, 206, 2), 1000])
async def test_an_answer_of_many_headers_passes_or_is_the_engines_error(gateway: Gateway, count: int) -> None:
    gateway.engine.headers = {f"x-{number}": "v" for number in range(count)}
    try:
        status, body = await gateway.post()
    finally:
        gateway.engine.headers = {}

    assert (status, body) == (200, b"engine") if count < 190 else status in (200, 502)
    assert status != 502 or _code(body) == "engine_protocol_error"


def _code(body: bytes) -> Any:
    return json.loads(body)["error"]["code"]


async def test_an_engine_that_does_not_speak_http_is_a_502_in_openais_shape() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    listen, admin, nobody = (f"127.0.0.1:{port}" for port in free_ports(3))
    async with await asyncio.start_server(nonsense, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = Config.model_validate(
            {
                "listen": {"grpc": nobody},
                "gateway": {"listen": listen, "endpoints": "static"},
                "pool": {"endpoints": [{"address": address, "model": "m"}]},
            }
        )
        async with EnvoyProcess(bootstrap(config, admin_address=admin)):
            status, body = await Gateway(int(listen.rsplit(":")[-1]), Engine("")).post()

    assert (status, _code(body)) == (502, "engine_protocol_error")
