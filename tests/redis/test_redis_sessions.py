"""Sidecars over one Redis keep a session on its host together, and each serves alone when Redis does not."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest
import structlog

from fairlead.redis import sessions as redis_sessions
from tests.redis.conftest import Join
from tests.redis.server import RedisServer
from tests.redis.world import Sidecar, key, until


async def test_the_second_turn_finds_its_endpoint_on_another_sidecar_tens_of_ms_later(join: Join) -> None:
    first, second = await join(), await join()
    took_s = []
    for known in range(0, 1000, 100):  # how soon Redis gets its turn each time is the machine's matter
        for number in range(known, known + 100):
            first.turn(number, "a:1")
        took = await until(lambda known=known: second.table.count == known + 100, "the bindings have arrived")  # type: ignore[misc]
        took_s.append(took.running_s)
    assert min(took_s) < 0.05
    assert {second.turn(number, "b:1") for number in range(1000)} == {"a:1"}


async def test_of_two_that_bind_at_once_the_first_writer_wins_and_the_other_is_corrected(join: Join) -> None:
    first, second = await join(), await join()
    for number in range(500):
        first.turn(number, "a:1")
        second.turn(number, "b:1")
    await until(lambda: first.idle() and second.idle(), "all claims are decided")
    await until(lambda: agree(first, second, 500), "both tables say the same")
    assert first.store.sessions.conflicts + second.store.sessions.conflicts <= 500


async def test_a_session_that_moves_on_one_sidecar_moves_on_all(join: Join) -> None:
    first, second = await join(), await join()
    first.turn("s", "a:1")
    await until(lambda: second.host("s") == "a:1", "the binding has arrived")
    assert second.table.flip(key("s"), "a:1", "b:1", 0)
    await until(lambda: first.host("s") == "b:1", "the move has arrived")


async def test_a_move_from_where_the_session_no_longer_is_is_undone(redis: RedisServer, join: Join) -> None:
    sidecar = await join()
    sidecar.turn("s", "a:1")
    await until(sidecar.idle, "the binding is written")
    redis.ask("SET", redis_sessions.KEY_PREFIX + key("s").hex(), "c:1")
    sidecar.bind("s", "b:1")
    await until(lambda: sidecar.host("s") == "c:1", "the winner is known")
    assert sidecar.store.sessions.conflicts == 1


async def test_a_cold_sidecar_learns_what_is_bound(join: Join) -> None:
    first = await join()
    for number in range(3000):
        first.turn(number, "ab"[number % 2] + ":1")
    await until(first.idle, "the bindings are written")
    cold = await join()
    await until(lambda: cold.table.count == 3000, "the bindings are loaded")
    assert agree(first, cold, 3000)


async def test_a_cold_sidecar_loads_no_more_than_its_table_holds(join: Join) -> None:
    first = await join()
    for number in range(3000):
        first.turn(number, "a:1")
    await until(first.idle, "the bindings are written")
    cold = await join(max_entries=1000)
    await until(lambda: cold.table.count >= 800, "the bindings are loaded")
    first.turn("new", "a:1")
    await until(lambda: cold.host("new"), "it goes on after loading")
    assert cold.table.count <= 1000


async def test_bindings_live_in_redis_as_long_as_in_the_table_and_use_renews_them(
    redis: RedisServer, join: Join
) -> None:
    sidecar = await join(ttl_s=2)
    name = redis_sessions.KEY_PREFIX + key("s").hex()
    sidecar.turn("s", "a:1")
    await until(sidecar.idle, "the binding is written")
    assert 0 < int(redis.ask("PTTL", name)[1:]) <= 2000
    await until(lambda: sidecar.host("s") and sidecar.store.sessions.written >= 4, "used for more than its time")
    assert int(redis.ask("PTTL", name)[1:]) > 0
    await until(lambda: redis.ask("EXISTS", name) == ":0\r\n", "Redis has forgotten it")


async def test_a_request_in_use_elsewhere_does_not_expire_here(join: Join) -> None:
    used, idle = await join(ttl_s=2), await join(ttl_s=2)
    used.turn("s", "a:1")
    await until(lambda: used.host("s") and used.store.sessions.written >= 5, "used for more than its time")
    assert idle.host("s") == "a:1"


# ---- Redis gone, slow or new ----------------------------------------------------------------------------------------


async def test_without_redis_the_local_table_serves_and_what_it_bound_is_written_later(
    redis: RedisServer, join: Join
) -> None:
    first, second = await join(), await join()
    redis.kill()
    await until(lambda: first.store.link.failures and second.store.link.failures, "the sidecars have noticed")
    assert not first.up()
    assert first.turn("s", "a:1") == first.turn("s", "b:1") == "a:1"
    assert first.store.sessions.pending == 1
    redis.start()
    await until(lambda: second.host("s") == "a:1", "the other sidecar knows")


async def test_a_sidecar_that_starts_without_redis_serves_and_joins_when_it_comes(
    redis: RedisServer,
) -> None:
    redis.kill()
    sidecar = Sidecar(redis.url)
    try:
        await until(lambda: sidecar.store.link.failures > 1, "it has tried again")
        assert sidecar.turn("s", "a:1") == "a:1"
        redis.start()
        await until(sidecar.idle, "the binding is written")
    finally:
        await sidecar.store.stop()


async def test_a_redis_that_hangs_counts_as_gone_and_nothing_is_lost(redis: RedisServer, join: Join) -> None:
    first, second = await join(), await join()
    redis.signal(signal.SIGSTOP)
    try:
        assert first.turn("s", "a:1") == "a:1"
        took = await until(lambda: not first.up() and not second.up(), "the sidecars have noticed")
        assert took.running_s < 3
        assert first.turn("s", "b:1") == "a:1"
    finally:
        redis.signal(signal.SIGCONT)
    await until(lambda: first.up() and second.host("s") == "a:1", "the other sidecar knows")
    assert first.store.sessions.conflicts == 0


async def test_a_sidecar_stops_at_once_though_redis_hangs(redis: RedisServer) -> None:
    sidecar = Sidecar(redis.url)
    await until(sidecar.up, "connected")
    redis.signal(signal.SIGSTOP)
    try:
        sidecar.turn("s", "a:1")
        stopping = asyncio.create_task(sidecar.store.stop())
        took = await until(stopping.done, "it has stopped")
        assert took.running_s < 2.5
        await stopping
    finally:
        redis.signal(signal.SIGCONT)


async def test_a_sidecar_that_stops_writes_what_still_waits(join: Join) -> None:
    first, second = await join(), await join()
    first.turn("s", "a:1")
    await first.store.stop()
    await until(lambda: second.host("s") == "a:1", "the binding has arrived")


async def test_redis_restarted_under_load_moves_no_session_and_forgets_none_in_use(
    redis: RedisServer, join: Join
) -> None:
    first, second = await join(), await join()
    hosts: dict[object, str] = {number: first.turn(number, f"{'ab'[number % 2]}:1") for number in range(300)}
    await until(lambda: second.table.count == 300, "the bindings have arrived")
    rng = random.Random(7)
    for step in range(2000):
        number = rng.randrange(300)
        assert rng.choice([first, second]).turn(number, "c:1") == hosts[number]
        if step % 10 == 0:
            hosts["first", step] = first.turn(("first", step), "a:1")
            hosts["second", step] = second.turn(("second", step), "b:1")
        if step in (500, 1000):
            redis.restart()  # it keeps nothing
        await asyncio.sleep(0.001)
    await until(lambda: first.idle() and second.idle(), "all claims are decided")
    assert all(first.turn(name, "c:1") == second.turn(name, "c:1") == host for name, host in hosts.items())
    cold = await join()
    await until(lambda: cold.table.count == 700, "what is in use is in Redis again")
    assert all(cold.host(name) == host for name, host in hosts.items())


async def test_claims_beyond_the_bound_are_counted_as_dropped(
    redis: RedisServer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_sessions, "MOST_PENDING", 10)
    sidecar = await join()
    redis.kill()
    await until(lambda: not sidecar.up(), "the sidecar has noticed")
    for number in range(15):
        sidecar.turn(number, "a:1")
    assert (sidecar.store.sessions.pending, sidecar.store.sessions.dropped) == (10, 5)
    assert sidecar.host(14) == "a:1"
    redis.start()
    await until(lambda: sidecar.idle(), "what waited is written")
    assert sidecar.host(14) == "a:1"
    await until(lambda: sidecar.store.sessions.written >= 11, "its next use is told again")


# ---- what others write ----------------------------------------------------------------------------------------------


async def test_what_is_not_ours_in_redis_is_counted_and_left_alone(redis: RedisServer, join: Join) -> None:
    redis.ask("SET", redis_sessions.KEY_PREFIX + "short", "a:1")
    redis.ask("SET", redis_sessions.KEY_PREFIX + key("s").hex(), "two words")
    redis.ask("LPUSH", redis_sessions.KEY_PREFIX + key("t").hex(), "a:1")
    sidecar = await join()
    await until(lambda: sidecar.store.sessions.malformed == 2, "both are counted")
    for message in ("x", "writer\nzz a:1", "writer\n" + key("s").hex(), "writer\n" + key("s").hex() + " " + "a" * 301):
        redis.ask("PUBLISH", "fairlead:sessions:0", message)
    redis.ask("PUBLISH", "fairlead:load:0", "12345678 not a load")
    redis.ask("PUBLISH", "fairlead:sessions:0", "writer\n" + key("u").hex() + " a:1")
    await until(lambda: sidecar.host("u") == "a:1", "the message after them is understood")
    assert (sidecar.table.count, sidecar.store.sessions.malformed, sidecar.store.load.malformed) == (1, 5, 1)


async def test_a_binding_takes_the_place_of_another_kind_of_value(redis: RedisServer, join: Join) -> None:
    first, second = await join(), await join()
    redis.ask("LPUSH", redis_sessions.KEY_PREFIX + key("s").hex(), "a:1")
    first.turn("s", "b:1")
    await until(lambda: second.host("s") == "b:1", "the binding has arrived")


async def test_a_redis_that_refuses_writes_counts_as_gone_until_it_takes_them(redis: RedisServer, join: Join) -> None:
    first, second = await join(), await join()
    redis.ask("CONFIG", "SET", "maxmemory", "1")
    first.turn("s", "a:1")
    await until(lambda: first.store.link.failures > 1, "it has tried again")
    assert first.turn("s", "b:1") == "a:1"
    redis.ask("CONFIG", "SET", "maxmemory", "0")
    await until(lambda: second.host("s") == "a:1", "the binding has arrived")


async def test_the_password_is_used_and_never_shown(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, password="hush%21")
    server.kill()
    with structlog.testing.capture_logs() as logs:
        sidecar = Sidecar(server.url)
        try:
            await until(lambda: sidecar.store.link.failures, "refused")
            server._password = "hush!"
            server.start()
            await until(sidecar.up, "the password is right")
            server.kill()
            server._password = "another"
            server.start()
            failures = sidecar.store.link.failures
            await until(lambda: sidecar.store.link.failures > failures + 1, "the password is wrong")
        finally:
            await sidecar.store.stop()
            server.kill()
    assert [entry["event"] for entry in logs] == [
        "the store cannot be used, the local table serves",
        "the store is back",
        "the store cannot be used, the local table serves",
    ]
    assert "hush" not in str(logs)
    assert f"redis://127.0.0.1:{server.port}/0" in str(logs)


def agree(one: Sidecar, other: Sidecar, sessions: int) -> bool:
    return all(one.table.address_of(key(n)) == other.table.address_of(key(n)) for n in range(sessions))
