"""What the sidecar does with bodies, through a real Envoy: all are read, whatever their path, size and trailers."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from random import Random

import pytest

from fairlead.api.prompt import Malformed
from fairlead.core.endpoint import Endpoint, EndpointSpec
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.extproc.body_reader import BodyReader
from fairlead.extproc.reading import Question, Read
from fairlead.extproc.server import processor_server
from fairlead.extproc.services import Services
from fairlead.gateway import Mode
from fairlead.policies import build_policy
from tests.extproc.world import services_around
from tests.gateway.conftest import Gateway, StartEngine, StartEnvoy
from tests.gateway.world import Engine
from tests.waiting import until

LIMIT_BYTES = 32 << 20


class World:
    """Two engines of two models, the route `auto` to both, a real sidecar and a real Envoy."""

    def __init__(self, small: Engine, large: Engine, shared: Services) -> None:
        self.engines = {"small": small, "large": large}
        self.shared = shared
        self.address = ""

    def in_flight(self) -> int:
        return sum(each.load.inflight_requests for each in self.shared.router.pool.endpoints)


@pytest.fixture
async def world(engine: StartEngine) -> AsyncIterator[World]:
    small, large = await engine("small"), await engine("large")
    pool = Pool(
        [Endpoint(EndpointSpec(each.address, each.name)) for each in (small, large)], {"auto": ("small", "large")}
    )
    reader = BodyReader(1)
    router = Router(pool, build_policy("fairlead", {}), fallbacks=2, rng=Random(0))
    shared = services_around(router, asyncio.get_running_loop().time, max_body_bytes=LIMIT_BYTES, reader=reader)
    server = processor_server(shared, "127.0.0.1:0")
    made = World(small, large, shared)
    made.address = f"127.0.0.1:{await server.start()}"
    yield made
    await server.drain(0)
    reader.stop()


async def _gateway(world: World, envoy: StartEnvoy, mode: Mode = "buffered", **limits: int) -> Gateway:
    addresses = [each.address for each in world.engines.values()]
    return await envoy(*addresses, sidecar=world.address, mode=mode, max_body_bytes=LIMIT_BYTES, **limits)


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_a_long_body_is_read_elsewhere_and_reaches_its_model_changed(
    world: World, envoy: StartEnvoy, mode: Mode
) -> None:
    gateway = await _gateway(world, envoy, mode)
    body = b'{"model":"auto","kv_transfer_params":{"a":1},"prompt":"%b"}' % (b"x" * (8 << 20))
    for _ in range(3):
        answer = await gateway.post(body)
        assert answer.status == 200
        model = answer.headers["x-fairlead-model"]
        wanted = body.replace(b"auto", model.encode()).replace(b'{"a":1}', b"null")
        assert {received.body for received in world.engines[model].received} == {wanted}  # Envoy may have retried it
        world.engines[model].received.clear()
    await until(lambda: (world.in_flight(), world.shared.held.bytes) == (0, 0), "the stream ends, after the answer")


@pytest.mark.parametrize("path", ["/v1/rerank", "/tokenize", "/v1/messages/count_tokens", "/v1/chat/completions/"])
async def test_a_path_that_names_a_model_goes_to_it(world: World, envoy: StartEnvoy, path: str) -> None:
    gateway = await _gateway(world, envoy)
    for model in ("small", "large") * 4:
        answer = await gateway.ask("POST", path, json.dumps({"model": model}).encode())
        assert (answer.status, answer.body.decode()) == (200, model)


async def test_an_upload_and_an_upgrade_go_to_the_model_that_they_name(world: World, envoy: StartEnvoy) -> None:
    gateway = await _gateway(world, envoy)
    form = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    for model in ("small", "large") * 4:
        body = form % (b"file", bytes(1000)) + form % (b"model", model.encode()) + b"--b--\r\n"
        answer = await gateway.ask("POST", "/v1/audio/transcriptions", body, headers)
        assert answer.body.decode() == model
        answer = await gateway.ask("GET", f"/v1/realtime?model={model}")
        assert answer.body.decode() == model
    answer = await gateway.ask("GET", "/v1/realtime?model=auto")
    model = answer.body.decode()
    assert world.engines[model].received[-1].path == f"/v1/realtime?model={model}"


async def test_a_client_does_not_choose_among_the_copies_of_one_engine(world: World, envoy: StartEnvoy) -> None:
    gateway = await _gateway(world, envoy)
    body = b'{"model":"large","data_parallel_rank":3,"routed_dp_rank":3}'
    await gateway.ask("POST", "/generate", body, {"x-data-parallel-rank": "3"})
    (received,) = world.engines["large"].received
    assert received.body == b'{"model":"large","data_parallel_rank":null,"routed_dp_rank":null}'
    assert "x-data-parallel-rank" not in received.headers


async def test_a_client_does_not_go_first_by_a_header(world: World, envoy: StartEnvoy) -> None:
    """vLLM 0.32 believes it rather than the body, where it schedules by priority."""
    gateway = await _gateway(world, envoy)
    await gateway.ask("POST", "/v1/chat/completions", b'{"model":"large","messages":[]}', {"x-vllm-priority": "-9"})
    (received,) = world.engines["large"].received
    assert "x-vllm-priority" not in received.headers


async def test_a_client_sets_none_of_sglangs_fields_by_headers(world: World, envoy: StartEnvoy) -> None:
    """SGLang 0.5.23 believes them rather than the body, in chats and at /generate."""
    fields = "rid", "bootstrap-host", "bootstrap-port", "bootstrap-room", "conversation-id", "routed-dp-rank"
    overrides = {f"x-override-{field}": "7" for field in (*fields, "disagg-prefill-dp-rank", "priority")}
    gateway = await _gateway(world, envoy)
    for path in ("/generate", "/v1/chat/completions"):
        answer = await gateway.ask("POST", path, b'{"model":"large","text":"x","messages":[]}', overrides)
        assert answer.status == 200
        received = world.engines["large"].received[-1]
        assert (received.path, received.headers.keys() & overrides.keys()) == (path, set())


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_a_body_is_read_whatever_the_method(world: World, envoy: StartEnvoy, method: str) -> None:
    """SGLang generates at `PUT /generate` as at POST."""
    gateway = await _gateway(world, envoy)
    answer = await gateway.ask(method, "/generate", b'{"model":"large","bootstrap_host":"10.0.0.1","text":"x"}')
    (received,) = world.engines["large"].received
    assert (answer.status, received.method) == (200, method)
    assert received.body == b'{"model":"large","bootstrap_host":null,"text":"x"}'


async def test_an_http2_request_with_trailers_is_picked_and_stripped(world: World, envoy: StartEnvoy) -> None:
    gateway = await _gateway(world, envoy)
    body = b'{"model":"auto","kv_transfer_params":{"a":1}}'
    status = await _post_with_trailers(gateway.url.removeprefix("http://"), body)
    assert status == b"200"
    (received,) = world.engines["small"].received + world.engines["large"].received
    assert json.loads(received.body)["kv_transfer_params"] is None
    assert json.loads(received.body)["model"] in world.engines


async def test_in_full_duplex_a_failed_attempt_is_repeated_but_for_a_body_with_trailers(
    world: World, envoy: StartEnvoy
) -> None:
    """Envoy would repeat that in full after what the next engine already has of it."""
    gateway, large = await _gateway(world, envoy, "full_duplex"), world.engines["large"]
    large.resets = True
    body = b'{"model":"large","messages":[]}'
    client = {"x-fairlead-sent-once": "1"}  # a client has no say in it
    assert (await gateway.post(body, client)).status == 503
    assert [received.body for received in large.received] == [body] * 3
    large.received.clear()
    assert await _post_with_trailers(gateway.url.removeprefix("http://"), body) != b"200"
    large.resets = False
    assert await _post_with_trailers(gateway.url.removeprefix("http://"), body) == b"200"
    assert [received.body for received in large.received] == [body] * 2
    assert "x-fairlead-sent-once" not in large.received[-1].headers


async def _post_with_trailers(address: str, body: bytes) -> bytes:
    """Frames by hand, as no client at hand sends trailers: headers, data, and headers that end the stream."""

    def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    head = {
        b":method": b"POST", b":scheme": b"http", b":path": b"/v1/chat/completions", b":authority": b"a",
        b"content-type": b"application/json",
    }  # fmt: skip
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
    writer.write(frame(1, 4, 1, b"".join([literal(*each) for each in head.items()])))
    writer.write(frame(0, 0, 1, body))
    writer.write(frame(1, 5, 1, literal(b"x-trailer", b"1")))
    try:
        async with asyncio.timeout(60):
            while True:
                start = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(start[:3], "big"))
                if start[3] == 1:  # headers; 0x88 is `:status: 200` in HPACK's static table
                    return b"200" if payload[:1] == b"\x88" else payload[:32]
    finally:
        writer.close()


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_envoy_waits_for_a_body_that_is_read_for_longer_than_its_timeout(
    world: World, envoy: StartEnvoy, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await _gateway(world, envoy, mode, processor_timeout_ms=1000)
    read = BodyReader.read

    async def slow(self: BodyReader, body: bytes, question: Question) -> Read | Malformed:
        await asyncio.sleep(1.5)  # longer than Envoy waits for other messages
        return await read(self, body, question)

    monkeypatch.setattr(BodyReader, "read", slow)
    answer = await gateway.post(b'{"model":"auto","kv_transfer_params":{},"prompt":"%b"}' % (b"x" * (1 << 20)))
    assert answer.status == 200
    (received,) = world.engines[answer.headers["x-fairlead-model"]].received
    assert json.loads(received.body)["kv_transfer_params"] is None
