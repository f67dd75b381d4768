"""WebSockets through a real Envoy that asks a running sidecar. (tests/gateway has them while the sidecar is away.)"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.gateway.process import until_advised
from fairlead.processes import Child, free_ports, python_module
from tests.gateway.world import WITHIN_S, Engine
from tests.waiting import until


@dataclass
class Realtime:
    url: str
    admin_url: str
    client: aiohttp.ClientSession


@pytest.fixture
async def realtime(tmp_path: Path) -> AsyncIterator[Realtime]:
    """Engines of the models `small` and `large` that send back what they get over a WebSocket; `auto` is a route."""
    async with AsyncExitStack() as stack:
        engines = [Engine("small"), Engine("large")]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
        document = {
            "listen": {"grpc": grpc, "admin": admin, "drain_s": 1},
            "gateway": {"listen": listen},
            "pool": {"endpoints": [{"address": engine.address, "model": engine.name} for engine in engines]},
            "routes": {"auto": ["large"]},
            "tenants": {"header": "x-tenant", "vouched_by": "the test"},
            "rate_limits": {"tenants": {"limited": {"tokens": 1}}},
        }
        path = tmp_path / "fairlead.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        sidecar = Child("the sidecar", python_module("fairlead", "serve", "--config", str(path)))
        await stack.enter_async_context(sidecar)
        await sidecar.until_ready(f"http://{admin}/readyz", WITHIN_S)
        tree = bootstrap(load(path), admin_address=envoy_admin)
        await stack.enter_async_context(EnvoyProcess(tree, ready_within_s=WITHIN_S))
        await until_advised(f"http://{listen}", WITHIN_S)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        running = Realtime(f"http://{listen}", f"http://{admin}", client)
        # The sidecar reads the end of the probe only after the probe has its answer.
        await until(lambda: none_in_flight(running), "the probe of the start has ended")
        yield running


async def in_flight(pool: Realtime) -> int:
    async with pool.client.get(f"{pool.admin_url}/debug/endpoints") as response:
        return sum(endpoint["inflight_requests"] for endpoint in (await response.json())["endpoints"])


async def none_in_flight(pool: Realtime) -> bool:
    return await in_flight(pool) == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_an_upgrade_that_is_no_get_is_refused_as_its_body_would_pass_unread(
    realtime: Realtime, method: str
) -> None:
    headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    body = b'{"model":"small","kv_transfer_params":{}}'
    url = f"{realtime.url}/v1/chat/completions"
    async with realtime.client.request(method, url, data=body, headers=headers) as answer:
        assert (answer.status, (await answer.json())["error"]["message"]) == (400, "A WebSocket opens with GET")
    # The sidecar chose before Envoy refused, and reads the end of that only after the client has its answer.
    await until(lambda: none_in_flight(realtime), "the sidecar has let go of the refused request")


@pytest.mark.parametrize(("asked", "expected"), [("small", "small"), ("large", "large"), ("auto", "large")])
async def test_a_websocket_goes_to_the_model_that_its_query_names(
    realtime: Realtime, asked: str, expected: str
) -> None:
    async with realtime.client.ws_connect(f"{realtime.url}/v1/realtime?model={asked}") as socket:
        for text in ("hello", "and again"):
            await socket.send_str(text)
            assert await socket.receive_str() == f"{expected}: {text}"
        assert await in_flight(realtime) == 1


async def test_a_tenant_beyond_its_rate_limit_opens_no_further_websocket(realtime: Realtime) -> None:
    url, limited = f"{realtime.url}/v1/realtime?model=small", {"x-tenant": "limited"}
    async with realtime.client.ws_connect(url, headers=limited) as socket:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await realtime.client.ws_connect(url, headers=limited)
        assert refused.value.status == 429
        assert refused.value.headers is not None
        assert int(refused.value.headers["retry-after"]) >= 1
        await socket.send_str("hello")
        assert await socket.receive_str() == "small: hello", "the one that is open goes on"
    async with realtime.client.ws_connect(url):
        """Another tenant has no limit."""
