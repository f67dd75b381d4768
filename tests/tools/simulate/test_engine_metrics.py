"""The metrics pages have the names and types that routers scrape from vLLM and SGLang, and true values."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.tools.simulate.server import EngineOptions, running_engine
from tests.tools.simulate.conftest import FAST, client_of
from tests.waiting import until

PROMPT = "word " * 64


async def scrape(client: httpx.AsyncClient) -> tuple[dict[str, str], dict[tuple[str, str], float], dict[str, str]]:
    """Types by family, values by sample name and source or le, and the labels of the last sample."""
    types, values, labels = {}, {}, {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        types[family.name] = family.type
        for sample in family.samples:
            labels = sample.labels
            values[sample.name, labels.get("source") or labels.get("le") or ""] = sample.value
    return types, values, labels


async def ask_twice(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 5})


async def test_vllm_page() -> None:
    options = EngineOptions(model="m", parameters=FAST)
    async with running_engine(options) as engine, client_of(engine) as client:
        await ask_twice(client)
        types, values, labels = await scrape(client)
    assert (
        types.items()
        >= {
            "vllm:num_requests_running": "gauge",
            "vllm:num_requests_waiting": "gauge",
            "vllm:kv_cache_usage_perc": "gauge",
            "vllm:prefix_cache_queries": "counter",
            "vllm:prefix_cache_hits": "counter",
            "vllm:prompt_tokens_by_source": "counter",
            "vllm:time_to_first_token_seconds": "histogram",
            "vllm:cache_config_info": "gauge",
        }.items()
    )
    prompt_tokens = engine.engine.counters.prefix_queries / 2
    cached_tokens = engine.engine.counters.prefix_hits
    assert cached_tokens >= prompt_tokens - 17
    assert values["vllm:prefix_cache_queries_total", ""] == 2 * prompt_tokens
    assert values["vllm:prefix_cache_hits_total", ""] == cached_tokens
    assert values["vllm:prompt_tokens_by_source_total", "local_cache_hit"] == cached_tokens
    assert values["vllm:prompt_tokens_by_source_total", "local_compute"] == 2 * prompt_tokens - cached_tokens
    assert values["vllm:prompt_tokens_by_source_total", "external_kv_transfer"] == 0
    assert values["vllm:generation_tokens_total", ""] == 10
    assert values["vllm:time_to_first_token_seconds_count", ""] == 2
    assert labels["model_name"] == "m"
    assert labels["engine"] == "0"


async def test_sglang_page() -> None:
    options = EngineOptions(model="m", kind="sglang", parameters=FAST)
    async with running_engine(options) as engine, client_of(engine) as client:
        await ask_twice(client)
        types, values, _ = await scrape(client)
    gauges = ("num_running_reqs", "num_queue_reqs", "token_usage", "max_total_num_tokens", "cache_hit_rate")
    assert {types[f"sglang:{name}"] for name in gauges} == {"gauge"}
    assert values["sglang:max_total_num_tokens", ""] == FAST.num_blocks * FAST.block_size
    assert 0.3 < values["sglang:cache_hit_rate", ""] <= 0.5
    assert values["sglang:time_to_first_token_seconds_count", ""] == 2


@pytest.mark.parametrize(
    ("kind", "running", "usage"),
    [
        ("vllm", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"),
        ("sglang", "sglang:num_running_reqs", "sglang:token_usage"),
    ],
)
async def test_gauges_show_the_requests_and_blocks_of_the_moment(kind: str, running: str, usage: str) -> None:
    options = EngineOptions(model="m", kind=kind, parameters=FAST)
    async with running_engine(options) as engine, client_of(engine) as client:
        body = {"prompt": PROMPT, "max_tokens": 100_000, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            chunks = response.aiter_raw()
            await anext(chunks)
            _, values, _ = await scrape(client)
            assert values[running, ""] == 1
            assert 0 < values[usage, ""] < 1
        await until(lambda: engine.engine.running == 0)
        _, values, _ = await scrape(client)
        assert values[running, ""] == values[usage, ""] == 0
