"""Clients that speak HTTP/2, here another Envoy, get the same service and the same limits."""

from __future__ import annotations

import pytest

from fairlead.config import Config
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import free_ports
from tests.gateway.conftest import StartEngine, StartEnvoy
from tests.gateway.world import body_of


@pytest.mark.parametrize(("size", "status"), [(20_000_000, 200), (20_000_001, 413)])
async def test_the_limit_of_a_body_is_exact_on_http2(
    engine: StartEngine, envoy: StartEnvoy, size: int, status: int
) -> None:
    first = await engine("first")
    gateway = await envoy(first.address, max_body_bytes=20_000_000)
    listen, admin, nobody = (f"127.0.0.1:{port}" for port in free_ports(3))
    config = Config.model_validate(
        {
            "listen": {"grpc": nobody},
            "gateway": {"listen": listen, "endpoints": "static"},
            "pool": {"endpoints": [{"address": gateway.url.removeprefix("http://"), "model": "m"}]},
        }
    )
    front = bootstrap(config, admin_address=admin)
    pool = front["static_resources"]["clusters"][0]
    (options,) = pool["typed_extension_protocol_options"].values()
    options["explicit_http_config"] = {"http2_protocol_options": {}}
    pool["health_checks"][0]["http_health_check"]["codec_client_type"] = "HTTP2"

    async with (
        EnvoyProcess(front),
        gateway.client.post(f"http://{listen}/v1/completions", data=body_of(size)) as answer,
    ):
        assert answer.status == status

    assert [len(request.body) for request in first.received] == ([size] if status == 200 else [])
