"""TLS and API keys, of engines and of clients, through a real Envoy: who gets which, with the sidecar and without."""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import Child, free_ports
from tests.edge.certificates import Authority
from tests.waiting import until

pytestmark = [pytest.mark.stack]
CLIENTS = {"authorization": "Bearer the-clients-own"}


@dataclass
class Engine:
    """Answers 401 to all but the holder of its key, if it has one, and keeps what it was sent."""

    model: str
    key: str = ""
    address: str = ""
    seen: list[tuple[str, str | None]] = field(default_factory=list)  # path, authorization

    async def answer(self, request: web.Request) -> web.Response:
        sent = request.headers.get("authorization")
        if request.headers.get("user-agent") != "Envoy/HC":
            self.seen.append((request.path, sent))
        if self.key and sent != f"Bearer {self.key}":
            return web.json_response({}, status=401)
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": self.model, "owned_by": "vllm"}]})
        return web.json_response({"model": self.model, "headers": sorted(map(str.lower, request.headers))})

    def asked(self, path: str) -> list[str | None]:
        return [sent for at, sent in self.seen if at == path]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "trusted")


Serve = Callable[..., Awaitable[Engine]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(engine, authority)` gives it an address; without an authority it speaks plain HTTP."""
    async with AsyncExitStack() as stack:

        async def start(engine: Engine, authority: Authority | None = None) -> Engine:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", engine.answer)
            runner = web.AppRunner(app, shutdown_timeout=1.0)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            context = None
            if authority is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*authority.issue("engine"))
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            engine.address = f"127.0.0.1:{runner.addresses[0][1]}"
            return engine

        yield start


@dataclass
class Running:
    url: str
    admin_url: str
    client: aiohttp.ClientSession
    sidecar: Child

    async def ask(self, model: str, headers: dict[str, str] = CLIENTS) -> tuple[int, dict[str, Any]]:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
        async with self.client.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def endpoints(self) -> dict[str, dict[str, Any]]:
        async with self.client.get(f"{self.admin_url}/debug/endpoints") as answer:
            return {each["address"]: each for each in (await answer.json())["endpoints"]}


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """`await start(pool, endpoints)`: the sidecar and Envoy; how Envoy knows the endpoints: eds, or static."""
    async with AsyncExitStack() as stack:

        async def run(pool: dict[str, Any], endpoints: str, **sections: Any) -> Running:
            grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
            path = tmp_path / "fairlead.yaml"
            document = {
                "listen": {"grpc": grpc, "admin": admin},
                "gateway": {"listen": listen, "endpoints": endpoints},
                "pool": pool,
                "observe": {"interval_ms": 100, "health_interval_ms": 100, "timeout_ms": 10_000},
                **sections,
            }
            path.write_text(yaml.safe_dump(document))
            command = [sys.executable, "-m", "fairlead", "serve", "--config", str(path)]
            sidecar = await stack.enter_async_context(Child("sidecar", command))
            await sidecar.until_ready(f"http://{admin}/readyz", within_s=60.0)
            tree = bootstrap(load(path), admin_address=envoy_admin)
            await stack.enter_async_context(EnvoyProcess(tree, ready_within_s=60.0))
            client = await stack.enter_async_context(aiohttp.ClientSession())
            return Running(f"http://{listen}", f"http://{admin}", client, sidecar)

        yield run


def key_file(folder: Path, key: str) -> str:
    path = folder / f"{key}.key"
    path.write_text(f"{key}\n")
    return str(path)


@pytest.mark.parametrize("endpoints", ["eds", "static"])
async def test_each_engine_gets_its_own_key_over_its_own_tls_and_never_a_client_s(
    endpoints: str, serve: Serve, start: Start, authority: Authority, tmp_path: Path
) -> None:
    small = await serve(Engine("small", "key-of-small"), authority)
    large = await serve(Engine("large", "key-of-large"), authority)
    open_one = await serve(Engine("open"))
    tls = {"ca": str(authority.path), "server_name": "fairlead"}
    pool: dict[str, Any] = {
        "endpoints": [
            {"address": small.address, "model": "small"},
            {
                "address": large.address,
                "model": "large",
                "tls": tls,
                "api_key_file": key_file(tmp_path, "key-of-large"),
            },
            {"address": open_one.address, "model": "open"},
        ],
        "models": {"small": {"tls": tls, "api_key_file": key_file(tmp_path, "key-of-small")}},
    }
    running = await start(pool, endpoints)

    async def advised() -> bool:
        return [(await running.ask(model))[0] for model in ("small", "large", "open")] == [200, 200, 200]

    await until(advised, "each model is answered")
    for engine in (small, large):
        assert set(engine.asked("/v1/chat/completions")) <= {f"Bearer {engine.key}"}
    assert set(open_one.asked("/v1/chat/completions")) == {CLIENTS["authorization"]}
    forged = {"x-fairlead-engine-key": pool["models"]["small"]["api_key_file"]} | CLIENTS
    _, answered = await running.ask("open", forged)
    assert "x-fairlead-engine-key" not in answered["headers"]
    assert open_one.asked("/v1/chat/completions")[-1] == CLIENTS["authorization"]

    # The sidecar asks them like this, too.
    await until(lambda: small.asked("/metrics") and large.asked("/metrics") and open_one.asked("/metrics"))
    assert set(small.asked("/metrics")) | set(small.asked("/health")) == {"Bearer key-of-small"}
    assert set(open_one.asked("/metrics")) == {None}

    # And Envoy goes on without it.
    running.sidecar.kill()
    asked = len(small.asked("/v1/chat/completions"))
    await until(advised, "each model is answered without the sidecar")
    assert set(small.asked("/v1/chat/completions")[asked:]) == {"Bearer key-of-small"}


async def test_an_engine_that_is_discovered_is_asked_what_it_serves_with_the_pool_s_key(
    serve: Serve, start: Start, authority: Authority, tmp_path: Path
) -> None:
    engine = await serve(Engine("m", "secret"), authority)
    listed = tmp_path / "engines.yaml"
    listed.write_text(yaml.safe_dump([{"address": engine.address}]))
    tls = {"ca": str(authority.path), "server_name": "fairlead"}
    pool = {"tls": tls, "api_key_file": key_file(tmp_path, "secret")}
    running = await start(pool, "eds", discovery={"file": str(listed)})

    async def advised() -> bool:
        return (await running.ask("m"))[0] == 200

    await until(advised, "its model is answered")
    assert {sent for _, sent in engine.seen} == {"Bearer secret"}


async def test_an_engine_with_another_authority_or_name_gets_nothing(
    serve: Serve, start: Start, authority: Authority, tmp_path: Path
) -> None:
    stranger = await serve(Engine("m"), Authority(tmp_path / "other"))
    misnamed = await serve(Engine("n"), authority)
    trusted = {"ca": str(authority.path), "server_name": "fairlead"}
    pool = {
        "endpoints": [
            {"address": stranger.address, "model": "m", "tls": trusted},
            {"address": misnamed.address, "model": "n", "tls": trusted | {"server_name": "elsewhere"}},
        ],
        "api_key_file": key_file(tmp_path, "secret"),
    }
    running = await start(pool, "eds")

    async def ejected() -> bool:
        return not any(each["healthy"] for each in (await running.endpoints()).values())

    await until(ejected, "the sidecar refuses both")
    assert [(await running.ask(model))[0] for model in ("m", "n")] == [503, 503]
    assert (stranger.seen, misnamed.seen) == ([], [])


def client_keys(folder: Path, **keys: str) -> str:
    path = folder / "clients.new"
    path.write_text(
        "# who may ask\n" + "".join(f"{name} {sha256(key.encode()).hexdigest()}\n" for name, key in keys.items())
    )
    return str(path.replace(folder / "clients"))


async def test_only_clients_with_a_key_may_ask_and_the_engine_does_not_see_it(
    serve: Serve, start: Start, tmp_path: Path
) -> None:
    engine = await serve(Engine("m"))
    pool = {"endpoints": [{"address": engine.address, "model": "m"}]}
    running = await start(pool, "eds", clients={"keys": client_keys(tmp_path, alice="one", bob="two")})
    alice, bob, anthropic = {"authorization": "Bearer one"}, {"authorization": "bearer two"}, {"x-api-key": "one"}

    async def served() -> bool:
        return (await running.ask("m", alice))[0] == 200

    await until(served, "who has a key is answered")
    assert [(await running.ask("m", headers))[0] for headers in (bob, anthropic)] == [200, 200]
    for refused in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}, {"x-api-key": ""}):
        status, said = await running.ask("m", refused)
        assert (status, said["error"]["code"]) == (401, "invalid_api_key")
    async with running.client.get(f"{running.url}/v1/models") as answer:
        assert answer.status == 401
    async with running.client.get(f"{running.url}/health") as answer:
        assert answer.status == 200
    assert {sent for _, sent in engine.seen} == {None}

    client_keys(tmp_path, bob="two")

    async def forgotten() -> bool:
        return (await running.ask("m", alice))[0] == 401

    await until(forgotten, "a key that is taken out of the file opens no more")
    assert (await running.ask("m", bob))[0] == 200
    (tmp_path / "clients").write_text("bob two\n")  # no hash: a mistake closes nothing and opens nothing
    assert [(await running.ask("m", headers))[0] for headers in (bob, alice)] == [200, 401]

    running.sidecar.kill()
    served_then = len(engine.asked("/v1/chat/completions"))

    async def closed() -> bool:
        return (await running.ask("m", bob))[0] == 503

    await until(closed, "without the sidecar nobody is let in")
    assert [(await running.ask("m", headers))[0] for headers in (alice, {})] == [503, 503]
    assert len(engine.asked("/v1/chat/completions")) == served_then
