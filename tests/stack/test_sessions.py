"""Sessions and prefixes through a real Envoy, and two sidecars over one Redis."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from tests.redis.server import RedisServer
from tests.stack.conftest import Answer, Stack, Start, engine

# A busy machine makes the measured round trips differ, and the nearest of idle engines is the right one.
EQUALLY_FAR = {"name": "fairlead", "rtt_weight": 0}
BOOK = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 60


async def turn(pool: Stack, number: int, session: str | None = None) -> Answer:
    """The conversation up to this turn: every turn adds a question and its answer."""
    messages: list[dict[str, str]] = [{"role": "system", "content": f"{session} {BOOK}"}]
    for n in range(number + 1):
        messages += [{"role": "user", "content": f"Question {n}?"}, {"role": "assistant", "content": f"Answer {n}."}]
    headers = {"x-session-id": session} if session else None
    answer = await pool.chat(model="small", messages=messages[:-1], headers=headers)
    assert answer.status == 200
    return answer


async def test_later_turns_stay_where_the_conversation_is_cached(stack: Start) -> None:
    pool = await stack(engine(), engine(), engine(), policy=EQUALLY_FAR)
    answers = [await turn(pool, number, "s") for number in range(4)]
    assert len({answer.headers["x-fairlead-endpoint"] for answer in answers}) == 1
    assert [answer.headers["x-fairlead-decision"] for answer in answers] == ["cost"] + ["affinity"] * 3
    cached = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    prompt = [answer.json()["usage"]["prompt_tokens"] for answer in answers]
    assert cached[0] == 0
    assert all(hit > 0.9 * tokens for hit, tokens in zip(cached[1:], prompt[1:], strict=True))
    expected = await pool.metric("fairlead_prefix_hit_tokens_total", model="small")
    assert expected == pytest.approx(sum(cached), rel=0.35)


async def test_without_a_session_the_prefix_alone_leads_back(stack: Start) -> None:
    pool = await stack(engine(), engine(), engine(), policy=EQUALLY_FAR)
    answers = [await turn(pool, number) for number in range(3)]
    assert len({answer.headers["x-fairlead-endpoint"] for answer in answers}) == 1


async def test_thirty_distinct_prompts_on_an_idle_pool_of_three_go_to_all_three(stack: Start) -> None:
    pool = await stack(engine(), engine(), engine(), policy=EQUALLY_FAR)
    answers = [await pool.chat(f"Prompt {n}: " + f"word{n} " * 100, model="small") for n in range(30)]
    counts = Counter(answer.headers["x-fairlead-endpoint"] for answer in answers)
    assert len(counts) == 3
    assert min(counts.values()) >= 5


async def test_a_session_moves_on_when_its_endpoint_dies(stack: Start) -> None:
    pool = await stack(engine(), engine())
    first = await turn(pool, 0, "s")
    home = [e.address for e in pool.engines].index(first.headers["x-fairlead-endpoint"])
    await pool.engines[home].stop()
    later = [await turn(pool, number, "s") for number in (1, 2)]
    assert {answer.headers["x-fairlead-endpoint"] for answer in later} == {pool.engines[1 - home].address}


async def test_tenants_do_not_share_prefixes(stack: Start) -> None:
    tenants = {"header": "x-tenant", "vouched_by": "the test, which stands for a gateway"}
    policy = EQUALLY_FAR | {"crowd_weight": 0}  # costs stay as they are
    pool = await stack(engine(), tenants=tenants, policy=policy, observe={"answers_per_second": 0})
    body: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": BOOK}]}
    for tenant in ("one", "two", "one"):
        await pool.chat(headers={"x-tenant": tenant}, **body)
    hits = [d["best"][0]["terms"]["prefill_ms"] for d in reversed(await pool.decisions())]
    assert hits[0] == hits[1] > 5 * hits[2]


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_nor_do_they_at_the_engine_also_while_the_sidecar_is_away(stack: Start, mode: str) -> None:
    """By what its answers say, each tenant is the first with its prompt."""
    tenants = {"header": "x-tenant", "vouched_by": "the test, which stands for a gateway"}
    pool = await stack(engine(), mode=mode, tenants=tenants)

    async def cached(tenant: str, **more: Any) -> int:
        body: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": BOOK}], **more}
        usage = (await pool.chat(headers={"x-tenant": tenant}, **body)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert await cached("one") == 0
    assert await cached("one") > 0
    assert await cached("two") == 0
    salt = b"two".hex()  # which is no secret
    assert await cached("three", cache_salt=salt) == 0

    pool.stop_sidecar(signal.SIGKILL)
    assert await cached("two") > 0
    assert await cached("four") == 0
    assert await cached("five", cache_salt=salt) == 0
    assert await cached("") == 0


async def test_tenants_share_what_engines_have_cached_where_the_operator_says_so(stack: Start) -> None:
    tenants = {"header": "x-tenant", "vouched_by": "the test, which stands for a gateway", "separate_caches": False}
    pool = await stack(engine(), tenants=tenants)
    body: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": BOOK}]}
    await pool.chat(headers={"x-tenant": "one"}, **body)
    usage = (await pool.chat(headers={"x-tenant": "two"}, **body)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


async def two_sidecars(stack: Start, redis: RedisServer) -> tuple[Stack, Stack]:
    shared: dict[str, Any] = {"sessions": {"store": redis.url}, "policy": {"name": "ear"}}
    first = await stack(engine(), engine(), engine(), **shared)
    return first, await stack(beside=first, **shared)


async def session_known(pool: Stack, session: str) -> None:
    async def known() -> bool:
        async with pool.client.get(f"{pool.admin_url}/debug/sessions/{session}") as response:
            return response.status == 200

    await pool.until(known, f"the sidecar knows {session}")


async def test_a_session_keeps_its_endpoint_across_two_sidecars(stack: Start, redis: RedisServer) -> None:
    first, second = await two_sidecars(stack, redis)
    for number in range(12):
        session = f"session-{number}"
        homes = []
        for pool, other in ((first, second), (second, first), (first, second)):
            homes.append((await turn(pool, 0, session)).headers["x-fairlead-endpoint"])
            await session_known(other, session)
        assert len(set(homes)) == 1, homes


async def test_each_sidecar_sees_the_load_of_the_other(stack: Start, redis: RedisServer) -> None:
    first, second = await two_sidecars(stack, redis)
    for each in range(3):
        await first.fault(each, kind="hang")
    busy = [asyncio.create_task(turn(first, 0, f"busy-{n}")) for n in range(2)]

    async def two_in_flight() -> bool:
        return await first.metric("fairlead_inflight_requests") == 2

    await first.until(two_in_flight, "two requests are in flight")

    async def both_seen() -> bool:
        async with second.client.get(f"{second.admin_url}/debug/endpoints") as response:
            endpoints = (await response.json())["endpoints"]
        return sum(int(e["peers"]["inflight_requests"]) for e in endpoints) == 2

    await second.until(both_seen, "the second sidecar has heard of them")
    idle = {e.address for e in first.engines} - {d["endpoints"][0] for d in await first.decisions()}
    for running in first.engines:
        running.faults.set(None)  # those that hang already do so on
    for number in range(3):
        assert (await turn(second, 0, f"new-{number}")).headers["x-fairlead-endpoint"] in idle
        await second.at_rest()
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)


async def test_when_redis_dies_sessions_are_served_from_the_local_table(stack: Start, redis: RedisServer) -> None:
    first, _ = await two_sidecars(stack, redis)
    home = (await turn(first, 0, "s")).headers["x-fairlead-endpoint"]
    redis.kill()

    async def noticed() -> bool:
        return await first.metric("fairlead_store_up") == 0

    await first.until(noticed, "the metric says that the store is down")
    assert (await turn(first, 1, "s")).headers["x-fairlead-endpoint"] == home
    assert (await turn(first, 0, "new")).status == 200
