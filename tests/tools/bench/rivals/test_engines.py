"""The engines behind the compared gateways answer what a vLLM is asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from fairlead.tools.bench.decision import MODEL
from fairlead.tools.bench.processes import addresses_of, child


@pytest.fixture
async def addresses() -> AsyncIterator[list[str]]:
    async with child("fairlead.tools.bench.rivals.engines", "3") as engines:
        yield await addresses_of(engines)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_each_has_a_host_of_its_own_and_all_have_one_port(
    addresses: list[str], client: aiohttp.ClientSession
) -> None:
    hosts, ports = zip(*(address.split(":") for address in addresses), strict=True)
    assert (len(set(hosts)), len(set(ports))) == (3, 1)
    for address in addresses:
        async with client.post(f"http://{address}/v1/chat/completions", data=b"{}") as response:
            assert response.headers["x-upstream"] == address


async def test_a_body_in_chunks_is_answered_as_one_with_a_length(
    addresses: list[str], client: aiohttp.ClientSession
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"model": '
        yield b'"m"}'

    answers = []
    for data in (b'{"model": "m"}', chunks()):
        async with client.post(f"http://{addresses[0]}/v1/chat/completions", data=data) as response:
            answers.append((response.status, await response.read()))
    assert answers[0] == answers[1]
    assert answers[0][0] == 200


async def test_models_and_metrics_are_those_of_an_idle_vllm(
    addresses: list[str], client: aiohttp.ClientSession
) -> None:
    async with client.get(f"http://{addresses[0]}/v1/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == [MODEL]
    async with client.get(f"http://{addresses[0]}/metrics") as response:
        lines = (await response.text()).splitlines()
    gauges = [line for line in lines if line.startswith(("vllm:num_requests_", "vllm:kv_cache_usage_perc"))]
    assert len(gauges) == 3
    assert all(line.endswith(" 0.0") for line in gauges)


async def test_another_prompt_has_other_tokens_and_the_same_prompt_the_same(
    addresses: list[str], client: aiohttp.ClientSession
) -> None:
    rendered = []
    for prompt in (b"a" * 400, b"b" * 400, b"a" * 400):
        async with client.post(f"http://{addresses[0]}/v1/chat/completions/render", data=prompt) as response:
            rendered.append(json.loads(await response.read())["token_ids"])
    assert rendered[0] == rendered[2] != rendered[1]
    assert len(rendered[0]) == 100


async def test_what_it_does_not_know_is_not_found(addresses: list[str], client: aiohttp.ClientSession) -> None:
    async with client.get(f"http://{addresses[0]}/get_server_info") as response:
        assert response.status == 404
