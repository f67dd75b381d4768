"""The files for an Envoy that starts while no sidecar answers: what is in them, and what is not."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from fairlead.access import Access
from fairlead.config import Config
from fairlead.gateway import EndpointDiscovery, EnvoyProcess, Host, bootstrap, remembered
from fairlead.processes import free_ports
from tests.gateway.conftest import StartEngine


def config_of(folder: Path, *models: str, listen: str = "127.0.0.1:8080", nobody: str = "127.0.0.1:9002") -> Config:
    document = {
        "listen": {"grpc": nobody},
        "gateway": {"listen": listen, "remember": str(folder)},
        "discovery": {"file": "engines.yaml"},
        "pool": {"models": {model: {} for model in models}},
    }
    return Config.model_validate(document)


def remember(config: Config, *hosts: Host) -> None:
    envoys = EndpointDiscovery(lambda: None, lambda: 0.0)
    envoys.publish(hosts)
    remembered.write(config, envoys.resource)


def ports_in(path: Path) -> list[int]:
    (resource,) = json.loads(path.read_bytes())["resources"]
    hosts = resource["endpoints"][0].get("lb_endpoints", [])
    return [host["endpoint"]["address"]["socket_address"]["port_value"] for host in hosts]


async def test_an_envoy_alone_sends_a_model_to_its_engine_and_blanks_what_only_fairlead_may_set(
    engine: StartEngine, tmp_path: Path
) -> None:
    small, large = await engine("small"), await engine("large")
    listen, admin, nobody = (f"127.0.0.1:{port}" for port in free_ports(3))
    config = config_of(tmp_path, "small", "large", listen=listen, nobody=nobody)
    remember(config, Host(small.address, "small"), Host(large.address, "large"))
    body = {"model": "large", "messages": [], "kv_transfer_params": {"remote_host": "10.0.0.9"}}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(EnvoyProcess(bootstrap(config, admin_address=admin)))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        async with client.post(f"http://{listen}/v1/chat/completions", json=body) as response:
            assert response.status == 200
    assert [json.loads(each.body) for each in large.received] == [body | {"kv_transfer_params": None}]
    assert small.received == []


@pytest.mark.parametrize("configured", [[], ["small", "medium"]])
async def test_an_envoy_alone_sends_a_model_that_only_discovery_knows_to_its_engine_and_never_elsewhere(
    engine: StartEngine, tmp_path: Path, configured: list[str]
) -> None:
    strangers = [await engine(f"stranger {number}", status=404) for number in range(12)]
    large = await engine("large")
    listen, admin, nobody = (f"127.0.0.1:{port}" for port in free_ports(3))
    config = config_of(tmp_path, *configured, listen=listen, nobody=nobody)
    hosts = [Host(each.address, "small") for each in strangers]
    remember(config, *hosts, Host(large.address, "large", names=("adapter",)))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(EnvoyProcess(bootstrap(config, admin_address=admin)))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        for model in ["large", "adapter"] * 10:
            body = {"model": model, "messages": []}
            async with client.post(f"http://{listen}/v1/chat/completions", json=body) as response:
                assert (response.status, await response.read()) == (200, b"large")
    assert [each.received for each in strangers] == [[]] * 12


@pytest.mark.parametrize("letter", ["m", "/", "模"])
async def test_the_longest_name_of_a_model_has_a_file_that_envoy_reads(
    engine: StartEngine, tmp_path: Path, letter: str
) -> None:
    first, other = await engine("first"), await engine("other")
    listen, admin, nobody = (f"127.0.0.1:{port}" for port in free_ports(3))
    longest = letter * 256
    config = config_of(tmp_path, longest, "other", listen=listen, nobody=nobody)
    remembered.prepare(config)
    remember(config, Host(first.address, longest), Host(other.address, "other"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(EnvoyProcess(bootstrap(config, admin_address=admin)))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        for model, expected in ((longest, b"first"), ("other", b"other")):
            body = {"model": model, "messages": []}
            async with client.post(f"http://{listen}/v1/chat/completions", json=body) as response:
                assert (response.status, await response.read()) == (200, expected)


def test_a_file_holds_the_name_of_a_key_and_not_the_key(tmp_path: Path) -> None:
    key, folder = tmp_path / "key", tmp_path / "kept"
    key.write_text("sk-very-secret")
    access = Access(ca="/etc/ca.pem", server_name="engine", api_key_file=str(key))
    remember(config_of(folder, "a", "b"), Host("10.0.0.1:8000", "a", access=access))
    texts = [path.read_text() for path in folder.iterdir()]
    assert len(texts) == 3
    assert sum(access.key_name in text for text in texts) == 2
    assert not any("sk-very-secret" in text or str(key) in text for text in texts)


def test_what_is_gone_is_in_no_file_even_of_a_model_that_the_configuration_names_no_more(tmp_path: Path) -> None:
    remember(config_of(tmp_path, "a/x", "b"), Host("10.0.0.1:1", "a/x"), Host("10.0.0.1:2", "b"))
    assert ports_in(tmp_path / "model%3Aa%2Fx.json") == [1]
    remember(config_of(tmp_path, "b"), Host("10.0.0.1:2", "b"))
    assert ports_in(tmp_path / "model%3Aa%2Fx.json") == []
    assert ports_in(tmp_path / "engines.json") == [2]


def test_what_is_in_the_folder_besides_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("theirs")
    remember(config_of(tmp_path, "a"), Host("10.0.0.1:1", "a"))
    assert (tmp_path / "other.json").read_text() == "theirs"


def test_files_that_are_there_stay_when_those_that_envoy_needs_are_made(tmp_path: Path) -> None:
    config = config_of(tmp_path / "kept", "a", "b")
    remembered.prepare(config)
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {"engines.json", "model%3Aa.json", "model%3Ab.json"}
    remember(config, Host("10.0.0.1:1", "a"))
    remembered.prepare(config)
    assert ports_in(tmp_path / "kept" / "engines.json") == [1]
