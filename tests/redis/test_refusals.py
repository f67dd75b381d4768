"""A Redis that answers and refuses some commands: what it takes is shared, and an operator is told once."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import capture_logs

from fairlead.core.ledger import Ticket
from fairlead.core.peers import NO_LOAD
from fairlead.redis import link
from fairlead.redis.sessions import KEY_PREFIX
from tests.redis.conftest import Join
from tests.redis.server import RedisServer
from tests.redis.world import Sidecar, key, until

DOWN = "the store cannot be used, the local table serves"


def events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs]


def both_see(first: Sidecar, second: Sidecar) -> bool:
    return first.load_of_others("a:1") == second.load_of_others("a:1") != NO_LOAD


async def test_while_it_is_full_load_and_limits_are_shared_all_the_same(redis: RedisServer, join: Join) -> None:
    first, second = await join(), await join()
    for sidecar in (first, second):
        Ticket(sidecar.endpoints["a:1"], 100, 40)
    await until(lambda: both_see(first, second), "each knows what the other has in flight")
    redis.ask("CONFIG", "SET", "maxmemory", "1")
    first.turn("s", "a:1")
    failures = first.store.link.failures
    while first.store.link.failures < failures + 4:
        await asyncio.sleep(0.01)
        assert both_see(first, second)
        assert first.rates.is_shared
        assert second.rates.is_shared
    assert not first.up(), "as bindings are not shared"


async def test_that_it_is_full_is_told_once_and_once_that_it_is_not_any_more(
    redis: RedisServer, join: Join, monkeypatch: Any
) -> None:
    monkeypatch.setattr(link, "_STEADY_S", 3.1)  # longer than two tries are apart
    with capture_logs() as logs:
        first, second = await join(), await join()
        redis.ask("CONFIG", "SET", "maxmemory", "1")
        first.turn("s", "a:1")
        await until(lambda: first.store.link.failures >= 4, "it has tried again")
        assert events(logs) == [DOWN]
        assert "OutOfMemory" in logs[0]["cause"]
        redis.ask("CONFIG", "SET", "maxmemory", "0")
        await until(lambda: second.host("s") == "a:1", "the binding has arrived")
        await until(first.up, "it counts as usable again")
        await until(lambda: len(logs) > 1, "an operator knows")
    assert events(logs) == [DOWN, "the store is back"]


async def test_a_replica_that_takes_no_writes_is_left_for_the_master_of_that_name(
    redis: RedisServer, join: Join
) -> None:
    with capture_logs() as logs:
        first = await join()
        redis.ask("REPLICAOF", "127.0.0.1", "1")
        first.turn("s", "a:1")
        await until(lambda: first.store.link.failures >= 4, "it has connected anew")
        assert events(logs) == [DOWN]
        assert "ReadOnly" in logs[0]["cause"]
        assert first.turn("s", "b:1") == "a:1"
        redis.ask("REPLICAOF", "NO", "ONE")
        await until(lambda: redis.ask("EXISTS", KEY_PREFIX + key("s").hex()) == ":1\r\n", "the binding is written")


async def test_a_value_of_many_megabytes_is_not_read(redis: RedisServer, join: Join) -> None:
    first = await join()
    first.turn("s", "a:1")
    await until(first.idle, "the binding is written")
    huge = KEY_PREFIX + key("huge").hex()
    for name in (huge, "fairlead:moved:" + key("huge").hex()):
        redis.ask("SETRANGE", name, str(4 << 20), "end")
    redis.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 1048576 0 0")  # who is to read it is cut off
    second = await join()
    await until(lambda: second.host("s") == "a:1", "the binding has arrived")
    await until(lambda: second.store.sessions.malformed == second.store.moves.malformed == 1, "both are counted")
    second.bind("huge", "a:1")
    await until(lambda: second.store.sessions.conflicts == 1, "a claim of that session is decided")
    assert second.store.link.failures == 0
    assert second.host("huge") == "a:1"


async def test_a_redis_that_breaks_off_again_and_again_is_told_once(
    redis: RedisServer, join: Join, monkeypatch: Any
) -> None:
    monkeypatch.setattr(link, "_STEADY_S", 3.0)  # longer than two tries are apart
    with capture_logs() as logs:
        sidecar = await join()
        for lost in range(1, 5):
            redis.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await until(lambda lost=lost: sidecar.store.link.failures == lost, "it has noticed")  # type: ignore[misc]
            await until(sidecar.up, "it has connected again")
        assert events(logs) == [DOWN]
        await until(lambda: len(logs) > 1, "an operator knows that it lasts")
    assert events(logs) == [DOWN, "the store is back"]


async def test_a_redis_half_a_second_away_is_used(redis: RedisServer) -> None:
    loop = asyncio.get_running_loop()

    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            loop.call_later(0.25, writer.write, data)
        loop.call_later(0.25, writer.close)

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_redis, to_redis = await asyncio.open_connection("127.0.0.1", redis.port)
        await asyncio.gather(later(reader, to_redis), later(from_redis, writer), return_exceptions=True)

    server = await asyncio.start_server(passed_on, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    first, second = Sidecar(url), Sidecar(url)
    await until(lambda: first.up() and second.up(), "both are connected")
    first.turn("s", "a:1")
    Ticket(first.endpoints["a:1"], 100, 40)
    await until(lambda: second.host("s") == "a:1", "the binding has arrived")
    await until(lambda: second.load_of_others("a:1") != NO_LOAD, "the load has arrived")
    assert first.store.link.failures == second.store.link.failures == 0
    for sidecar in (first, second):
        await sidecar.store.stop()
    server.close()
