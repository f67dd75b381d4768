"""Sidecars over one Redis hold one limit for a tenant and serve tenants as one queue would, and go on without Redis."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.admission.admission import Rules
from fairlead.admission.rates import Charge, Rate, RateRules
from fairlead.admission.waiting import Waiting
from tests.redis.conftest import Join
from tests.redis.server import RedisServer
from tests.redis.world import Sidecar, until

LIMIT = 10_000.0
SLOW = RateRules(others=Rate(tokens=LIMIT))


class Limited:
    """A sidecar with rate limits, at whose clock no time passes: nothing comes in while a test waits for Redis."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar, self.rates = sidecar, sidecar.rates
        sidecar.store.tenants._clock_s = lambda: 0.0
        self.rates.use(SLOW, 0.0)

    def take(self, tokens: float, tenant: bytes = b"t") -> float:
        """What was granted."""
        return tokens if isinstance(self.rates.take(tenant, tokens, 0.0, 0.0), Charge) else 0.0

    def left(self, tenant: bytes = b"t") -> float:
        levels = dict(self.rates.all_levels(0.0)).get(tenant)
        return LIMIT if levels is None else levels[0].left

    def parts(self) -> int | None:
        return self.sidecar.store.tenants.parts

    def shares(self) -> bool:
        return self.rates.is_shared and self.sidecar.store.load.peers.count == 1


async def pair(join: Join) -> tuple[Limited, Limited]:
    first, second = Limited(await join()), Limited(await join())
    await until(lambda: first.shares() and second.shares(), "each knows of the other")
    return first, second


async def agree(first: Limited, second: Limited, left: float) -> None:
    await until(lambda: first.left() == second.left() == left, "both know what was granted")


async def test_two_sidecars_hold_one_limit_but_for_what_the_other_granted_meanwhile(join: Join) -> None:
    first, second = await pair(join)
    granted = seen = error = 0.0
    for number in range(400):
        mine = first if number % 2 else second
        unseen = LIMIT - granted - mine.left()  # below 0: granted by the other, and not known here yet
        got = mine.take(100)
        error = max(error, -unseen if got else 0.0)
        granted += got
        if number % 8 == 0:
            await agree(first, second, LIMIT - granted)
            seen += 1
    assert seen == 50
    assert granted <= LIMIT + error
    assert error <= 8 * 100, "no more than what was granted since they last agreed"
    await agree(first, second, LIMIT - granted)
    assert first.take(100) == second.take(100) == 0


async def test_a_burst_at_both_at_once_is_a_debt_of_both(join: Join) -> None:
    first, second = await pair(join)
    assert first.take(LIMIT) + second.take(LIMIT) == 2 * LIMIT
    await until(lambda: first.left() == second.left() == -LIMIT, "both have paid both")
    for sidecar in (first, second):
        assert not isinstance(sidecar.rates.take(b"t", 1, 0.0, 59.0), Charge), "the debt is paid back first"


async def test_what_is_given_back_is_given_back_at_both(join: Join) -> None:
    first, second = await pair(join)
    charge = first.rates.take(b"t", 4000, 0.0, 0.0)
    assert isinstance(charge, Charge)
    await until(lambda: second.left() == LIMIT - 4000, "the second has paid too")
    first.rates.settle(charge, 1000, 0.0, 0.0)
    await until(lambda: second.left() == LIMIT - 1000, "and has back what was not taken")


async def test_without_redis_each_has_half_of_what_was_left_and_both_agree_when_it_is_back(
    redis: RedisServer, join: Join
) -> None:
    first, second = await pair(join)
    first.take(2000)
    await until(lambda: second.left() == LIMIT - 2000, "the second has paid too")
    await until(lambda: first.parts() == second.parts() == 2, "each knows that there are two")
    redis.kill()
    await until(lambda: not (first.rates.is_shared or second.rates.is_shared), "both know that Redis is gone")
    assert first.left() == second.left() == (LIMIT - 2000) / 2
    granted = sum(sidecar.take(100) for sidecar in (first, second) for _ in range(200))
    assert granted == LIMIT - 2000, "together what one limit had left"
    redis.restart()
    await until(lambda: first.rates.is_shared and second.rates.is_shared, "Redis is back")
    assert first.rates.share == second.rates.share == 1.0
    assert first.take(100) == second.take(100) == 0
    first.take(LIMIT, b"u")
    await until(lambda: second.left(b"u") == 0, "what is granted is shared again")


async def test_a_redis_that_breaks_off_again_and_again_costs_what_one_break_does(
    redis: RedisServer, join: Join
) -> None:
    first, second = await pair(join)
    assert first.take(0) == 0  # remembered, with nothing taken
    await until(lambda: first.parts() == second.parts() == 2, "each knows that there are two")
    for lost in range(1, 5):
        redis.ask("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda lost=lost: first.sidecar.store.link.failures == lost, "it has noticed")  # type: ignore[misc]
        await until(first.sidecar.up, "it has connected again")
        await until(lambda: first.sidecar.store.load.peers.count == 1, "and knows of the other")
    assert first.left() == LIMIT / 2
    await until(lambda: first.rates.is_shared and second.rates.is_shared, "one has lasted")
    first.take(1000)
    await until(lambda: second.left() <= LIMIT - 1000, "what is granted is shared again")


def waits(sidecar: Sidecar, tenant: bytes) -> Waiting:
    admission = sidecar.admission
    waiting = Waiting(admission.lane("m"), lambda _: 100.0, tenant=tenant, cost_ms=100.0)
    assert admission.queue.enter(waiting, 0.0) is not None
    return waiting


def next_tenant(sidecar: Sidecar) -> bytes:
    queue = sidecar.admission.queue
    taken = queue.next(sidecar.admission.lane("m").group, lambda _lane, _level: True, 0.0)
    assert taken is not None
    queue.charge(taken, 100.0, 0.0)
    return taken.waiting.tenant


async def test_a_tenant_that_is_served_at_one_sidecar_gives_way_at_the_other(join: Join) -> None:
    first, second = await join(), await join()
    for sidecar in (first, second):
        sidecar.admission.use(Rules(), 0.0)
    await until(lambda: first.admission.queue.is_shared and second.admission.queue.is_shared, "both share")
    for _ in range(20):
        waits(first, b"flood")
        waits(second, b"flood")
        waits(second, b"modest")
    account = next(iter(second.admission.queue.groups.values())).bands[0].accounts[b"flood"]
    for _ in range(10):
        assert next_tenant(first) == b"flood"
    await until(lambda: account.served_ms == 1000.0, "the second knows what the first gave")
    assert [next_tenant(second) for _ in range(10)] == [b"modest"] * 10
    assert {next_tenant(second), next_tenant(second)} == {b"flood", b"modest"}, "then they take turns"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"nonsense",
        msgspec.msgpack.encode([[[b"t", float("nan"), 0.0]], []]),
        msgspec.msgpack.encode([[[b"t", 1e13, 0.0]], []]),
        msgspec.msgpack.encode([[[b"t", 0.0, -1e13]], []]),
        msgspec.msgpack.encode([[[b"t" * 600, 1.0, 0.0]], []]),
        msgspec.msgpack.encode([[], [["m", 0, b"t", -1.0]]]),
    ],
)
async def test_a_message_that_no_sidecar_sends_changes_nothing_and_is_counted(join: Join, message: bytes) -> None:
    sidecar = await join()
    limited = Limited(sidecar)
    sidecar.store.tenants.received(b"somebody" + message)
    assert sidecar.store.tenants.malformed == 1
    assert limited.left() == LIMIT
    assert limited.rates.tenants == 0
