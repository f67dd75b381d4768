"""Rate limits of tenants through real Envoys: one sidecar, and two that share a Redis which is then killed."""

from __future__ import annotations

import time

import pytest

from fairlead.gateway import Mode
from tests.redis.server import RedisServer
from tests.stack.conftest import Answer, Stack, Start, engine

TENANTS = {"header": "x-tenant", "vouched_by": "the test"}
LIMIT = 3000
ANSWER = 100  # tokens that each request allows; its prompt has a few more
ASKED = ANSWER + 30  # at most, with its prompt
AGREE_EVERY = 4  # requests, after which the sidecars must have heard of each other
LIMITS = {"tenants": {"*": {"tokens": LIMIT}}}


async def ask(pool: Stack, tenant: str) -> Answer:
    return await pool.chat(model="small", max_tokens=ANSWER, headers={"x-tenant": tenant})


@pytest.mark.parametrize("mode", ["buffered", "full_duplex"])
async def test_a_tenant_sees_what_is_left_and_then_429_while_another_goes_on(stack: Start, mode: Mode) -> None:
    limits = {"tenants": {"*": {"tokens": LIMIT}, "small": {"tokens": 1}}}
    pool = await stack(engine("small"), mode=mode, tenants=TENANTS, rate_limits=limits)
    answer = await ask(pool, "a")
    assert answer.status == 200
    assert answer.headers["x-ratelimit-limit-tokens"] == str(LIMIT)
    assert 0 < int(answer.headers["x-ratelimit-remaining-tokens"]) < LIMIT
    assert (await ask(pool, "small")).status == 200  # more than its limit: that needs a full bucket
    refused = await ask(pool, "small")
    assert refused.status == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["retry-after"] == "120"  # the most; its debt takes longer
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-rate-limited"
    assert (await ask(pool, "a")).status == 200
    assert await pool.metric("fairlead_rate_limited_requests_total", limit="tokens") == 1
    pool.write(rate_limits={"tenants": {"*": {"tokens": 10 * LIMIT}}})

    async def is_in_force() -> bool:
        return (await ask(pool, "small")).headers.get("x-ratelimit-limit-tokens") == str(10 * LIMIT)

    await pool.until(is_in_force, "a reload changes the limit")


async def test_two_sidecars_hold_one_limit_and_each_its_half_when_redis_is_gone(
    stack: Start, redis: RedisServer
) -> None:
    sections = {
        "tenants": TENANTS,
        "rate_limits": LIMITS,
        "sessions": {"store": redis.url},
        "observe": {"answers_per_second": 0},  # so that each request is charged what it was expected to take
    }
    first = await stack(engine("small"), **sections)
    second = await stack(beside=first, **sections)

    async def know_each_other() -> bool:
        return all([await pool.metric("fairlead_store_peers") == 1 for pool in (first, second)])

    await first.until(know_each_other, "the sidecars know each other")
    began_s = time.monotonic()
    granted = await until_refused(first, second, "a", agree_every=AGREE_EVERY)
    came_in = LIMIT * (time.monotonic() - began_s) / 60
    assert granted * ASKED / ANSWER > LIMIT - 2 * ASKED
    unheard = AGREE_EVERY * ASKED
    assert granted <= LIMIT + came_in + unheard, "but for what each grants before it has heard of the other"

    redis.kill()

    async def has_a_half() -> bool:
        return all([await pool.metric("fairlead_rate_limit_share") == 0.5 for pool in (first, second)])

    await first.until(has_a_half, "each has its half")
    began_s = time.monotonic()
    granted = await until_refused(first, second, "b")
    came_in = LIMIT * (time.monotonic() - began_s) / 60
    assert granted * ASKED / ANSWER > LIMIT - 4 * ASKED
    assert granted <= LIMIT + came_in + 2 * ASKED
    assert await first.metric("fairlead_failures_total") == await second.metric("fairlead_failures_total") == 0


async def until_refused(first: Stack, second: Stack, tenant: str, agree_every: int | None = None) -> int:
    """Tokens granted for answers, until both refuse."""
    granted, refusing = 0, set[int]()

    async def agree() -> bool:
        return abs(await left(first, tenant) - await left(second, tenant)) < ANSWER / 2

    for number in range(400):
        place = number % 2
        answer = await ask((first, second)[place], tenant)
        if answer.status == 200:
            granted += ANSWER
        else:
            assert answer.status == 429
            refusing.add(place)
        if len(refusing) == 2:
            return granted
        if agree_every is not None and number % agree_every == 0:
            await first.until(agree, "both know what was granted")
    raise AssertionError("neither refuses")


async def left(pool: Stack, tenant: str) -> float:
    async with pool.client.get(f"{pool.admin_url}/debug/rates") as response:
        shown = (await response.json())["rates"]
    return next((each["limits"]["tokens"]["left"] for each in shown if each["tenant"] == tenant), LIMIT)
