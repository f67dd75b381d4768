"""Two sidecars over one Redis: a session moves once, whoever wanted to move it, and Redis may go while it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from fairlead.admission.admission import Admission
from fairlead.admission.rates import RateLimits
from fairlead.core.facts import RequestFacts
from fairlead.core.pool import Pool
from fairlead.redis.password import StorePassword
from fairlead.redis.store import SharedStore
from fairlead.tools.simulate.faults import Fault
from fairlead.tools.simulate.server import RunningEngine, running_engine
from tests.migration.world import CHAT, Turn, World, conversation, options
from tests.redis.server import RedisServer
from tests.waiting import until


class Sharing(World):
    """A world whose session table is shared over Redis."""

    def __init__(self, engines: list[RunningEngine], url: str) -> None:
        super().__init__(engines, self._decided)
        self.store = SharedStore(
            url,
            StorePassword(),
            self.router,
            apply=lambda _address, _load: None,
            rates=RateLimits(),
            admission=Admission(self.router),
            clock_s=time.perf_counter,
        )
        self.store.start()

    def _decided(self, session: bytes) -> bool:
        return not self.store.link.up or not self.store.sessions.waits(session)

    async def settled(self) -> None:
        await until(lambda: self.store.link.up and not self.store.sessions.pending)


@pytest.fixture
async def both(redis: RedisServer) -> AsyncIterator[tuple[Sharing, Sharing]]:
    """Two sidecars, of which one would move sessions to the second engine and the other to the third."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_engine(options())) for _ in range(3)]
        first, second = Sharing(engines, redis.url), Sharing(engines, redis.url)
        first.router.pool = Pool(first.router.pool.endpoints[:2], {})
        home, _, third = second.router.pool.endpoints
        second.router.pool = Pool([home, third], {})
        await first.settled()
        await second.settled()
        yield first, second
        for world in (first, second):
            await world.mover.stop()
            await world.store.stop()


async def plan_on_both(first: Sharing, second: Sharing) -> tuple[Turn, Turn]:
    one = await first.turn()
    await until(lambda: second.router.sessions.address_of(one.move.session) == first.host.address)
    later = conversation("s", 2)
    second.router.index.insert(one.facts.prefix, second.host.address, time.perf_counter())
    return one, second.plan(later, "s")


async def test_a_move_of_one_sidecar_is_known_to_the_other(both: tuple[Sharing, Sharing]) -> None:
    first, second = both
    turn = await first.turn()
    await first.copy(turn)
    assert first.planner.done == {"copy": 1}
    await until(lambda: second.router.sessions.address_of(turn.move.session) == first.target.address)
    assert second.router.sessions.since_move_s(turn.move.session, time.perf_counter()) < 60


async def test_two_sidecars_that_move_one_session_at_once_agree_on_where_it_lives(
    both: tuple[Sharing, Sharing],
) -> None:
    first, second = both
    one, two = await plan_on_both(first, second)
    first.mover.offer(one.move, one.facts, CHAT, one.body)
    second.mover.offer(two.move, two.facts, CHAT, two.body)
    await asyncio.gather(first.idle(), second.idle())
    await asyncio.gather(first.settled(), second.settled())
    homes = {first.lives_at(one), second.lives_at(two)}
    assert len(homes) == 1
    assert homes < {first.target.address, second.target.address}
    assert first.planner.done["copy"] + second.planner.done["copy"] == 1
    lost = first.mover.counts.dropped + second.mover.counts.dropped
    assert sum(lost.values()) == 1
    assert set(lost) <= {"moved_elsewhere", "session_gone"}


async def test_a_move_while_redis_is_gone_holds_here_and_everywhere_once_it_is_back(
    both: tuple[Sharing, Sharing], redis: RedisServer
) -> None:
    first, second = both
    turn = await first.turn()
    await first.settled()
    first.engines[1].faults.set(Fault("slow", delay_ms=100, only="import"))
    first.mover.offer(turn.move, turn.facts, CHAT, turn.body)
    redis.kill()
    await first.idle()
    assert first.lives_at(turn) == first.target.address
    assert first.planner.done == {"copy": 1}
    redis.start()
    await first.settled()
    await until(lambda: second.router.sessions.address_of(turn.move.session) == first.target.address)


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
async def test_every_sidecar_knows_which_agent_of_a_shared_id_moved(
    both: tuple[Sharing, Sharing], redis: RedisServer, restarted: bool
) -> None:
    first, second = both
    turn = await first.turn()
    await first.copy(turn)
    moved_to = first.target.address
    await until(lambda: not first.store.moves.pending)
    other = Sharing(first.engines, redis.url) if restarted else second
    other.router.pool = Pool([*other.router.pool.endpoints[:1], first.target], {})
    await other.settled()

    def goes_to(facts: RequestFacts) -> str:
        held = other.router.index.match(facts.prefix, time.perf_counter())
        cached = {address: int(blocks * facts.block_tokens) for address, blocks in held.items()}
        return other.planner.stayed_at(facts, moved_to, other.router.pool.endpoints, cached)

    other.planner.rules = first.planner.rules
    that_stayed = other.facts(conversation("another agent's own prompt", 3), "s")
    await until(lambda: goes_to(that_stayed) == other.host.address)
    assert goes_to(turn.facts) == moved_to
    assert goes_to(other.facts(conversation("s", 5), "s")) == moved_to
    if restarted:
        await other.store.stop()


async def test_a_drain_holds_at_every_sidecar_and_after_a_restart_until_it_is_undone(
    both: tuple[Sharing, Sharing], redis: RedisServer
) -> None:
    first, second = both
    address = first.target.address
    first.planner.draining.add(address)
    await until(lambda: address in second.planner.draining)
    restarted = Sharing(first.engines, redis.url)
    await until(lambda: address in restarted.planner.draining)
    restarted.planner.draining.discard(address)
    await until(lambda: not first.planner.draining and not second.planner.draining)
    again = Sharing(first.engines, redis.url)
    await again.settled()
    assert not again.planner.draining
    for world in (restarted, again):
        await world.store.stop()
