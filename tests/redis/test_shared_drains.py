"""Drains over a real Redis: ordered at one sidecar, they hold at all, whatever happens to Redis meanwhile."""

from __future__ import annotations

import pytest

from fairlead.redis import drains
from fairlead.redis.drains import ENDED_PREFIX, KEY_PREFIX
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


async def test_what_was_undrained_while_a_sidecar_was_away_drains_there_no_more(redis: RedisServer, join: Join) -> None:
    first, second = await join(), await join()
    first.planner.draining.add("a:1")
    await until(lambda: "a:1" in second.planner.draining, "the drain has arrived")
    await second.store.link.stop()
    first.planner.draining.discard("a:1")
    await until(lambda: redis.ask("EXISTS", KEY_PREFIX + "a:1") == ":0\r\n", "Redis knows that it ended")
    second.store.link.start()
    await until(lambda: not second.planner.draining, "the second knows")
    third = await join()
    third.planner.draining.add("b:1")
    await until(lambda: "b:1" in second.planner.draining, "what is ordered later has arrived")
    assert first.planner.draining == second.planner.draining == third.planner.draining == {"b:1"}


async def test_a_state_file_of_before_does_not_drain_again_what_was_undrained_since(
    redis: RedisServer, join: Join
) -> None:
    first = await join()
    first.planner.draining.add("a:1")
    await until(lambda: redis.ask("EXISTS", KEY_PREFIX + "a:1") == ":1\r\n", "Redis knows it")
    first.planner.draining.discard("a:1")
    await until(lambda: redis.ask("EXISTS", ENDED_PREFIX + "a:1") == ":1\r\n", "Redis knows that it ended")
    restarted = await join(restored=["a:1", "b:1"])
    await until(lambda: "b:1" in first.planner.draining, "what nobody has undrained is shared")
    assert restarted.planner.draining == first.planner.draining == {"b:1"}


async def test_a_drain_that_is_ordered_after_an_undrain_while_redis_is_away_holds(
    redis: RedisServer, join: Join
) -> None:
    first, second = await join(), await join()
    redis.ask("SET", ENDED_PREFIX + "a:1", "1")
    await second.store.link.stop()
    second.planner.draining.add("a:1")
    second.store.link.start()
    await until(lambda: "a:1" in first.planner.draining, "the drain has arrived")
    assert redis.ask("EXISTS", ENDED_PREFIX + "a:1") == ":0\r\n"


async def test_a_drain_by_a_sidecar_of_before_that_knows_of_no_such_mark_holds(redis: RedisServer, join: Join) -> None:
    redis.ask("SET", ENDED_PREFIX + "a:1", "1")
    redis.ask("SET", KEY_PREFIX + "a:1", "1")
    sidecar = await join(restored=["a:1"])
    sidecar.planner.draining.add("b:1")
    await until(lambda: redis.ask("EXISTS", KEY_PREFIX + "b:1") == ":1\r\n", "it has read and written")
    assert sidecar.planner.draining == {"a:1", "b:1"}


async def test_what_is_ordered_while_all_of_redis_is_looked_through_is_written_at_once(
    redis: RedisServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drains, "_SCAN_BATCH", 1)
    first = await join()
    redis.ask("EVAL", f"for number = 1, 10000 do redis.call('SET', '{KEY_PREFIX}no address ' .. number, '1') end", "0")
    second = await join()
    second.planner.draining.add("b:1")
    await until(lambda: "b:1" in first.planner.draining, "the drain has arrived")
    second.planner.draining.discard("b:1")
    await until(lambda: "b:1" not in first.planner.draining, "its end has arrived")
    assert second.store.drains.malformed < 10_000, "it still looks"
    assert not second.planner.draining


async def test_no_more_drains_than_a_pool_has_endpoints_are_taken_from_redis(
    redis: RedisServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drains, "MOST_DRAINS", 100)
    redis.ask("EVAL", f"for number = 1, 3000 do redis.call('SET', '{KEY_PREFIX}x:' .. number, '1') end", "0")
    sidecar = await join()
    await until(lambda: sidecar.store.drains.malformed == 2900, "the others are counted")
    assert len(sidecar.planner.draining) == 100
