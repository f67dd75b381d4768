"""Sidecars over one Redis see each other's load in time, and not longer than it is true."""

from __future__ import annotations

import random
import signal
import time

import msgspec
import pytest

from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from fairlead.core.peers import NO_LOAD
from fairlead.redis import load
from fairlead.redis.load import PERIOD_S, SIGN_OF_LIFE_S
from tests.redis.conftest import Join
from tests.redis.server import RedisServer
from tests.redis.world import Sidecar, until

SENT = Load(1, 100, 40, 0, 40 * (60 + 100) // 2)  # each of the 40 tokens attends to those before it


def take(sidecar: Sidecar, address: str) -> Ticket:
    return Ticket(sidecar.endpoints[address], 100, 40)


async def test_each_sidecar_sees_the_others_load_within_a_tenth_of_a_second(join: Join) -> None:
    """It is in the next message, and that is sent soon; how soon Redis gets its turn is the machine's matter."""
    first, second = await join(), await join()
    waits, messages = [], []

    async def seen(new: Load) -> None:
        before = first.store.load.sent
        waits.append(await until(lambda: second.load_of_others("a:1") == new, "the new load is seen"))
        messages.append(first.store.load.sent - before)

    for _ in range(20):
        ticket = take(first, "a:1")
        await seen(SENT)
        ticket.release()
        await seen(NO_LOAD)
    assert PERIOD_S <= 0.05
    assert min(wait.running_s for wait in waits) < 0.07
    assert sorted(messages)[len(messages) // 2] == 1  # signs of life come between


async def test_others_know_whose_prompts_another_endpoint_still_computes(join: Join) -> None:
    first, second = await join(), await join()
    Ticket(first.endpoints["a:1"], 100, 0, awaits_other=True)
    await until(lambda: second.load_of_others("a:1") == Load(1, 100, awaited_requests=1), "the load is seen")


def test_older_and_newer_sidecars_read_each_others_loads() -> None:
    """An array on the wire: what one of them does not know is left out, or nothing."""

    class Older(msgspec.Struct, array_like=True, frozen=True):
        requests: int
        prompt_tokens: int
        pending_tokens: int
        decoding: int
        attended: int

    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    assert decode(encode(Older(1, 100, 40, 0, 7)), type=Load) == Load(1, 100, 40, 0, 7)
    assert decode(encode(Load(1, 100, 40, 0, 7, 1)), type=Older) == Older(1, 100, 40, 0, 7)


async def test_a_sidecar_does_not_count_its_own_load_twice(join: Join) -> None:
    first, second = await join(), await join()
    take(first, "a:1")
    take(second, "a:1").prefilled()
    await until(lambda: second.load_of_others("a:1") == SENT, "the second sees the first")
    await until(lambda: first.load_of_others("a:1") == Load(1, 100, 0, 1), "the first sees the second")


async def test_after_any_traffic_of_three_sidecars_each_sees_what_the_others_have(join: Join) -> None:
    sidecars = [await join(), await join(), await join()]
    rng, tickets = random.Random(3), list[Ticket]()
    for _ in range(300):
        tickets.append(take(rng.choice(sidecars), rng.choice(["a:1", "b:1"])))
        if rng.random() < 0.6:
            tickets.pop(rng.randrange(len(tickets))).release()
        await until(lambda: True, "a moment")

    def seen() -> bool:
        return all(
            me.load_of_others(address).inflight_requests
            == sum(other.endpoints[address].own.inflight_requests for other in sidecars if other is not me)
            for me in sidecars
            for address in ("a:1", "b:1")
        )

    await until(seen, "each sees the sum of the others")
    for ticket in tickets:
        ticket.release()
    await until(lambda: all(s.load_of_others(a) == NO_LOAD for s in sidecars for a in ("a:1", "b:1")), "all is zero")


async def test_a_sidecar_that_stops_counts_no_more_at_once(join: Join) -> None:
    second, waits = await join(), []
    for _ in range(4):  # how soon Redis gets its turn each time is the machine's matter
        first = await join()
        take(first, "a:1")
        await until(lambda: second.load_of_others("a:1") != NO_LOAD, "the load is seen")
        await first.store.stop()
        waits.append(await until(lambda: second.load_of_others("a:1") == NO_LOAD, "the load is gone"))
    assert min(wait.running_s for wait in waits) < 0.2


async def test_without_redis_others_count_for_a_second_and_again_when_it_is_back(
    redis: RedisServer, join: Join
) -> None:
    first, second = await join(), await join()
    take(first, "a:1")
    await until(lambda: second.load_of_others("a:1") != NO_LOAD, "the load is seen")
    began_s = time.perf_counter()  # a busy machine may take its time to end it
    redis.kill()
    took = await until(lambda: second.load_of_others("a:1") == NO_LOAD, "the load is forgotten")
    assert time.perf_counter() - began_s > 0.5
    assert took.running_s < 2
    redis.start()
    await until(lambda: second.load_of_others("a:1") == SENT, "the load is seen again")


async def test_others_are_forgotten_while_redis_hangs(redis: RedisServer, join: Join) -> None:
    first, second = await join(), await join()
    take(first, "a:1")
    await until(lambda: second.load_of_others("a:1") != NO_LOAD, "the load is seen")
    redis.signal(signal.SIGSTOP)
    try:
        took = await until(lambda: second.load_of_others("a:1") == NO_LOAD, "the load is forgotten")
    finally:
        redis.signal(signal.SIGCONT)
    assert took.running_s < 2
    await until(lambda: second.load_of_others("a:1") == SENT, "the load is seen again")


async def test_an_idle_sidecar_sends_signs_of_life_and_a_busy_one_twenty_messages_a_second(join: Join) -> None:
    quiet, busy = await join(), await join()
    before = quiet.store.load.sent, busy.store.load.sent
    ends_s = time.perf_counter() + 1

    def second_of_changes() -> bool:
        take(busy, "a:1")
        return time.perf_counter() >= ends_s and busy.store.load.sent - before[1] >= 5

    took = await until(second_of_changes, "a second of load that changes all the time")
    assert quiet.store.load.sent - before[0] <= took.clock_s / SIGN_OF_LIFE_S + 1
    assert busy.store.load.sent - before[1] <= took.clock_s / PERIOD_S + 1


async def test_among_a_hundred_sidecars_a_busy_one_sends_five_messages_a_second(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "EXPIRY_S", 1000.0)
    busy = await join()
    for number in range(100):
        busy.store.load.received(b"%08d" % number + msgspec.msgpack.encode([1, {}]))
    await until(lambda: busy.store.load.sent >= 2, "its first messages are sent")
    before, ends_s = busy.store.load.sent, time.perf_counter() + 1

    def second_of_changes() -> bool:
        take(busy, "a:1")
        return time.perf_counter() >= ends_s

    took = await until(second_of_changes, "a second of load that changes all the time")
    assert 2 <= busy.store.load.sent - before <= took.clock_s / 0.2 + 1


@pytest.mark.parametrize("message", [b"", b"nonsense", msgspec.msgpack.encode([1, {"a:1" + "x" * (1 << 20): [1]}])])
async def test_a_message_that_no_sidecar_sends_is_counted_and_no_load(join: Join, message: bytes) -> None:
    sidecar = await join()
    sidecar.store.load.received(b"somebody" + message)
    assert sidecar.store.load.malformed == 1
    assert sidecar.store.load.peers.count == 0
