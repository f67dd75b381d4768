"""Drains over a real Redis: ordered at one sidecar, they hold at all, whatever happens to Redis meanwhile."""

from __future__ import annotations

import pytest

from fairlead.redis import drains
from fairlead.redis.drains import KEY_PREFIX
from tests.redis.conftest import Join
from tests.redis.server import RedisServer
from tests.redis.world import until


async def test_a_drain_that_redis_refused_is_known_to_all_once_it_takes_writes(redis: RedisServer, join: Join) -> None:
    first, second = await join(), await join()
    redis.ask("CONFIG", "SET", "maxmemory", "1")
    failures = first.store.link.failures
    first.planner.draining.add("a:1")
    await until(lambda: first.store.link.failures > failures, "it has tried")
    redis.ask("CONFIG", "SET", "maxmemory", "0")
    await until(lambda: "a:1" in second.planner.draining, "the drain has arrived")


async def test_a_sidecar_that_comes_after_redis_lost_everything_drains_too(redis: RedisServer, join: Join) -> None:
    first = await join()
    first.planner.draining.add("a:1")
    await until(lambda: redis.ask("EXISTS", KEY_PREFIX + "a:1") == ":1\r\n", "Redis knows it")
    redis.restart()
    await until(lambda: redis.ask("EXISTS", KEY_PREFIX + "a:1") == ":1\r\n", "Redis knows it again")
    second = await join()
    await until(lambda: "a:1" in second.planner.draining, "it has been read")


async def test_a_drain_of_an_endpoint_that_is_gone_is_not_kept_in_redis(
    redis: RedisServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drains, "_RENEW_S", 0.0)
    for address in ("a:1", "gone:1"):
        redis.ask("SET", KEY_PREFIX + address, "1", "EX", "100")
    sidecar = await join()
    await until(lambda: redis.ask("TTL", KEY_PREFIX + "a:1") == ":3600\r\n", "that of the endpoint is renewed")
    assert int(redis.ask("TTL", KEY_PREFIX + "gone:1")[1:]) <= 100
    assert sidecar.planner.draining == {"a:1", "gone:1"}, "it may only not be ready yet"
    redis.ask("DEL", KEY_PREFIX + "gone:1")
    await until(lambda: sidecar.planner.draining == {"a:1"}, "it drains no longer than Redis says")
    sidecar.planner.draining.add("gone:1")  # as a state file of long ago says
    sidecar.planner.draining.add("b:1")
    await until(lambda: redis.ask("EXISTS", KEY_PREFIX + "b:1") == ":1\r\n", "a drain of the pool is written")
    assert redis.ask("EXISTS", KEY_PREFIX + "gone:1") == ":0\r\n"
