"""Fairlead in front of a real SGLang server, and a simulated vLLM with the same model that most tests take away."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import pytest_asyncio

from fairlead.core.prefix_index import PrefixIndex
from fairlead.engines.introduction import FoundEngine, discover
from fairlead.engines.kv_blocks import PreciseIndex
from fairlead.engines.kv_events import KvEventFeed, KvEventSource, follow
from fairlead.engines.metrics_text import read_metrics
from fairlead.tools.demo.front import Front
from fairlead.tools.demo.learning import Learnt
from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine
from lab import words
from lab.engines import LabEngine, LabEngines
from lab.pool import START_MS_PER_TOKEN, body_of, forget_prompts
from lab.servers import A_CONNECTION_EACH, CAPACITY_TOKENS, MAX_MODEL_LEN, PAGE_TOKENS
from tests.lab.sglang import MODEL, MOST_QUEUED, WITHIN_S

CHAT = "/v1/chat/completions"

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(1500), pytest.mark.slow]

TENANTS = {"tenants": {"header": "x-tenant", "vouched_by": "the test, which stands for a gateway"}}


@dataclass(frozen=True)
class World:
    engines: LabEngines
    found: FoundEngine
    spare: RunningEngine
    front: Front
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    direct: httpx.AsyncClient

    @property
    def engine(self) -> LabEngine:
        return self.engines.running[0]

    async def seen(self, address: str) -> dict[str, Any]:
        shown = (await self.admin.get("/debug/endpoints")).json()["endpoints"]
        return next(endpoint for endpoint in shown if endpoint["address"] == address)

    async def is_healthy(self, address: str) -> bool:
        return bool((await self.seen(address))["healthy"])

    async def alone(self) -> None:
        """Only the real server is left."""
        async with httpx.AsyncClient(trust_env=False, base_url=f"http://{self.spare.address}") as client:
            await client.post("/fault", json={"kind": "down"})

        async def is_gone() -> bool:
            return not await self.is_healthy(self.spare.address)

        await until(is_gone)


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def world(servers: LabEngines) -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:
        folder = Path(name)
        async with running_engine(EngineOptions(model=MODEL)) as spare:
            real, simulated = await discover([servers.running[0].address, spare.address])
            events = real.kv_events()
            assert events is not None
            learnt = Learnt(None, {MODEL: START_MS_PER_TOKEN}, {})
            past_the_sidecar = httpx.AsyncClient(
                base_url=f"http://{real.address}", trust_env=False, timeout=WITHIN_S, limits=A_CONNECTION_EACH
            )
            async with (
                Front([real, simulated], learnt, "fairlead", folder, {real.address: events}, TENANTS) as front,
                httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=WITHIN_S) as client,
                httpx.AsyncClient(base_url=front.admin_url, trust_env=False, timeout=WITHIN_S) as admin,
                past_the_sidecar as direct,
            ):
                yield World(servers, real, spare, front, client, admin, direct)


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await what():  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(0.05)


async def test_what_the_server_says_of_itself_is_found_with_its_kv_events(world: World) -> None:
    assert (world.found.engine, world.found.model, world.found.max_model_len) == ("sglang", MODEL, MAX_MODEL_LEN)
    assert world.found.info.version == "0.5.23"
    assert world.found.info.max_queued_requests == MOST_QUEUED
    events = world.found.kv_events() or {}
    assert (events["events"], events["replay"]) == (world.engine.events, world.engine.replay)


async def test_the_metrics_page_is_read_in_full_and_the_sidecar_knows_the_engine(world: World) -> None:
    await world.direct.post(CHAT, json=body_of(words.question(Random(1), "en", 128), MODEL))

    async def is_reported() -> bool:
        seen = await world.seen(world.engine.address)
        return bool(seen["reported"]["prefix_queried_tokens"]) and seen["version"] == "0.5.23"

    await until(is_reported)
    report = read_metrics((await world.direct.get("/metrics")).content, time.monotonic())
    assert report is not None
    assert None not in (
        *(report.running_requests, report.waiting_requests, report.kv_usage, report.kv_capacity_tokens),
        *(report.prompt_tokens, report.generated_tokens, report.prefix_queried_tokens),
    )
    assert report.kv_block_tokens == PAGE_TOKENS


async def test_a_model_that_the_server_would_silently_answer_for_is_not_found(world: World) -> None:
    body = body_of(words.question(Random(2), "en", 64), "nobody")
    assert (await world.direct.post(CHAT, json=body)).status_code == 200
    assert (await world.client.post(CHAT, json=body)).status_code == 404


async def test_the_second_turn_of_a_session_finds_its_prompt_in_the_cache(world: World) -> None:
    await world.alone()
    question = words.question(Random(3), "en", 256)
    body: dict[str, Any] = body_of(question, MODEL)
    turns = []
    for key in (question.key, question.pairs[0][0]):
        turns.append(await world.client.post(CHAT, json=body, headers={"x-session-id": "two turns"}))
        said = turns[-1].json()["choices"][0]["message"]
        body["messages"] += [said, {"role": "user", "content": words.asked("en", key)}]
    first, second = [turn.json()["usage"] for turn in turns]
    cached_tokens = second["prompt_tokens_details"]["cached_tokens"]
    assert cached_tokens >= first["prompt_tokens"] // PAGE_TOKENS * PAGE_TOKENS
    decisions = (await world.admin.get("/debug/decisions", params={"limit": 1})).json()["decisions"]
    assert decisions[0]["cached_tokens"] == pytest.approx(cached_tokens, rel=0.3)


@asynccontextmanager
async def followed(world: World) -> AsyncIterator[PreciseIndex]:
    """What the real server holds, by its KV events; every one of them was read."""
    engine, precise = world.engine, PreciseIndex()
    source = KvEventSource(engine.address, engine.events, engine.replay)
    feed = KvEventFeed(source, precise, PrefixIndex(), time.monotonic)
    following = asyncio.create_task(follow([feed]))
    try:
        rng = Random(5)

        async def hears() -> bool:  # the first message makes the feed ask for all before it
            await world.direct.post(CHAT, json=body_of(words.question(rng, "ja", 64), MODEL))
            return feed.counts.replayed > 0

        await until(hears)
        yield precise
    finally:
        following.cancel()
        await asyncio.wait([following])
    assert (feed.counts.unreadable, feed.counts.skipped_events, feed.counts.lost) == (0, 0, 0)


async def generate(world: World, tokens: list[int], **more: str) -> None:
    body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 2, "temperature": 0}} | more
    (await world.direct.post("/generate", json=body)).raise_for_status()


async def test_blocks_are_followed_with_replay_until_the_cache_is_flushed(world: World) -> None:
    async with followed(world) as precise:
        tokens = [7 + n % 90 for n in range(20 * PAGE_TOKENS + 3)]
        await generate(world, tokens)

        async def is_held() -> bool:
            return precise.match(tokens, world.engine.address) == 20 * PAGE_TOKENS

        await until(is_held)
        await forget_prompts(world.engines)

        async def is_gone() -> bool:
            return precise.match(tokens, world.engine.address) == 0

        await until(is_gone)


async def test_what_the_server_evicts_is_no_longer_held(world: World) -> None:
    async with followed(world) as precise:
        prompts = [[7 + (n * (1 + k)) % 89 for n in range(MAX_MODEL_LEN - 64)] for k in range(12)]
        assert sum(map(len, prompts)) > CAPACITY_TOKENS
        await generate(world, prompts[0])

        async def is_held() -> bool:
            return precise.match(prompts[0], world.engine.address) > MAX_MODEL_LEN // 2

        await until(is_held)
        for prompt in prompts[1:]:
            await generate(world, prompt)

        async def is_gone() -> bool:
            held = [precise.match(prompt, world.engine.address) for prompt in (prompts[0], prompts[-1])]
            return held[0] < MAX_MODEL_LEN // 2 < held[1]

        await until(is_gone)
        assert precise.blocks()[world.engine.address] * PAGE_TOKENS <= CAPACITY_TOKENS


async def test_a_block_with_a_cache_salt_matches_no_plain_prompt(world: World) -> None:
    async with followed(world) as precise:
        salted, plain = [[start + n % 50 for n in range(4 * PAGE_TOKENS)] for start in (100, 200)]
        await generate(world, salted, cache_salt="tenant")
        await generate(world, plain)

        async def is_held() -> bool:  # events come in order: by then the salted blocks have come
            return precise.match(plain, world.engine.address) == len(plain)

        await until(is_held)
        assert precise.match(salted, world.engine.address) == 0


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/generate"])
async def test_no_tenant_learns_what_another_has_cached(world: World, path: str) -> None:
    """SGLang says how much of a prompt it had: of another tenant's, or of one that is under another's salt, nothing."""
    await world.alone()
    question = words.question(Random(path), "en", 512)
    bodies: dict[str, dict[str, Any]] = {
        CHAT: body_of(question, MODEL),
        "/v1/completions": {"model": MODEL, "prompt": question.prompt, "max_tokens": 2},
        "/generate": {"text": question.prompt},
    }

    async def cached_tokens(tenant: str, **more: str) -> int:
        response = await world.client.post(path, json=bodies[path] | more, headers={"x-tenant": tenant})
        answer = response.raise_for_status().json()
        if path == "/generate":
            return int(answer["meta_info"]["cached_tokens"])
        return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0))

    assert await cached_tokens("one") == 0
    assert await cached_tokens("one") >= 256
    assert await cached_tokens("two") == 0
    assert await cached_tokens("three", cache_salt=b"one".hex()) == 0


async def test_a_get_empties_the_servers_cache_so_no_client_may_have_it_fetch_from_itself(world: World) -> None:
    body = {"text": words.question(Random(8), "en", 512).prompt, "sampling_params": {"max_new_tokens": 2}}

    async def cached_tokens() -> int:
        answer = (await world.direct.post("/generate", json=body)).raise_for_status().json()
        return int(answer["meta_info"]["cached_tokens"])

    async def is_empty() -> bool:  # it refuses while a request is not quite over
        return (await world.direct.get("/flush_cache")).status_code == 200

    await cached_tokens()
    assert await cached_tokens() > 0
    await until(is_empty)
    assert await cached_tokens() == 0


async def test_a_cached_prompt_of_anthropics_api_counts_as_long_as_it_is(world: World) -> None:
    await world.alone()
    question = words.question(Random(6), "en", 512)
    usage = (await world.client.post(CHAT, json=body_of(question, MODEL))).json()["usage"]
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": question.prompt}]}
    answer = await world.client.post("/v1/messages", json=body, headers={"x-request-id": "anthropic"})
    assert answer.json()["usage"]["input_tokens"] < usage["prompt_tokens"] // 2  # without what was cached

    async def counted() -> dict[str, Any]:
        events = (await world.admin.get("/debug/requests/anthropic")).json()["events"]
        return next((event for event in events if event["event"] == "ended"), {})

    async def is_counted() -> bool:
        return bool(await counted())

    await until(is_counted)
    seen = await counted()
    assert seen["prompt_tokens"] == usage["prompt_tokens"]
    assert seen["cached_tokens"] > usage["prompt_tokens"] // 2


async def test_streams_that_a_full_queue_refuses_are_a_503_and_the_server_stays_in_the_pool(world: World) -> None:
    await world.alone()

    async def refused(n: int) -> bool:
        body = body_of(words.question(Random(100 + n), "en", 512), MODEL) | {"stream": True}
        response = await world.client.post(CHAT, json=body)
        assert response.status_code in (200, 503)
        assert ('"error"' in response.text) == (response.status_code == 503)
        return response.status_code == 503

    before = await counted_503(world)
    async with slowed(world, 1.0):  # so that the queue is full before the first is answered
        outcomes = await asyncio.gather(*[refused(n) for n in range(12)])
    assert any(outcomes)
    assert not all(outcomes)

    async def all_counted() -> bool:
        return await counted_503(world) - before == sum(outcomes)

    await until(all_counted)
    seen = await world.seen(world.engine.address)
    assert (seen["healthy"], seen["ejections"]) == (True, 0)


@asynccontextmanager
async def slowed(world: World, step_s: float) -> AsyncIterator[None]:
    """Each step of the server takes so much longer."""
    await world.direct.post("/slow_down", json={"forward_sleep_time": step_s})
    try:
        yield
    finally:
        await world.direct.post("/slow_down", json={"forward_sleep_time": 0})


async def counted_503(world: World) -> int:
    page = (await world.admin.get("/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("fairlead_requests_total") and 'code="503"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


async def test_a_slow_server_is_neither_ejected_nor_forgotten(world: World) -> None:
    await world.alone()
    before = await world.seen(world.engine.address)
    short = body_of(words.question(Random(7), "en", 64), MODEL) | {"max_tokens": 1}

    async def holds_it() -> bool:
        return bool((await world.seen(world.engine.address))["inflight_requests"])

    async with slowed(world, 8.0):
        asked = asyncio.create_task(world.client.post(CHAT, json=short))
        await until(holds_it)
        with pytest.raises(httpx.ReadTimeout):  # which the sidecar and Envoy would see if they asked it
            await world.direct.get("/health", timeout=2.0)
        assert (await asked).status_code == 200
    after = await world.seen(world.engine.address)
    assert (after["healthy"], after["ejections"], after["restarts"]) == (True, before["ejections"], before["restarts"])
    assert await envoys_view(world) == "HEALTHY"


async def envoys_view(world: World) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        clusters = (await client.get(f"{world.front.envoy_admin_url}/clusters?format=json")).json()["cluster_statuses"]
    host, port = world.engine.address.split(":")
    hosts = next(cluster["host_statuses"] for cluster in clusters if cluster["name"] == "engines")
    one = next(h for h in hosts if h["address"]["socket_address"] == {"address": host, "port_value": int(port)})
    return str(one["health_status"].get("eds_health_status")) if len(one["health_status"]) == 1 else str(one)
