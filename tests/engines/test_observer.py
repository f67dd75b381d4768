"""All watches of a pool: started, stopped and replaced together."""

from __future__ import annotations

import asyncio

from fairlead.core.endpoint import Endpoint
from fairlead.engines.observer import Observers
from tests.core.world import make_endpoint
from tests.engines.world import PATIENCE_S, QUICK, FakeEngine, watching
from tests.waiting import until


async def second_engine() -> FakeEngine:
    fake = FakeEngine()
    await fake.start()
    return fake


def watches() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("watch ")}


async def test_an_endpoint_is_taken_for_healthy_before_the_first_probe(endpoint: Endpoint) -> None:
    async with watching([endpoint]):
        assert endpoint.health.healthy


async def test_stopping_leaves_no_task_and_no_connection(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint]) as observers:
        await until(lambda: not endpoint.report.stale)
        assert watches() == {f"watch {endpoint.address}"}
        assert engine.open_connections > 0
    assert watches() == set()
    assert observers.counts == {}
    await until(lambda: engine.open_connections == 0)


async def test_stopping_what_never_started_or_was_stopped_does_nothing(endpoint: Endpoint) -> None:
    observers = Observers(QUICK, [endpoint])
    await observers.stop()
    await observers.start()
    await observers.stop()
    await observers.stop()
    assert watches() == set()


async def test_stopping_does_not_wait_for_an_engine_that_hangs(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.hanging |= {"/health", "/metrics"}
    loop = asyncio.get_running_loop()
    async with watching([endpoint], QUICK.model_copy(update={"timeout_ms": 60_000})):
        await until(lambda: engine.asked["/health"] and engine.asked["/metrics"])
        stopped_s = loop.time()
    assert loop.time() - stopped_s < PATIENCE_S


async def test_an_engine_that_hangs_does_not_delay_another(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.hanging |= {"/health", "/metrics", "/version"}
    other = await second_engine()
    second = make_endpoint(other.address, "m")
    async with watching([endpoint, second]) as observers:
        await until(lambda: observers.counts[second.address].scrapes >= 10)
        assert observers.counts[second.address].scrape_failures == {}
    await other.stop()


async def test_an_endpoint_that_stays_keeps_its_watch_and_one_that_goes_is_not_asked_again(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    other = await second_engine()
    second = make_endpoint(other.address, "m")
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.rtt_ms > 0 and not endpoint.report.stale)
        kept = observers.counts[endpoint.address]
        await observers.replace(QUICK, [endpoint, second])
        assert observers.counts[endpoint.address] is kept
        await until(lambda: not second.report.stale)
        await observers.replace(QUICK, [second])
        assert watches() == {f"watch {second.address}"}
        asked, scrapes = sum(engine.asked.values()), observers.counts[second.address].scrapes
        await until(lambda: observers.counts[second.address].scrapes > scrapes + 3)
        assert sum(engine.asked.values()) == asked
        assert endpoint.rtt_ms > 0
    await other.stop()


async def test_new_rules_hold_for_the_watches_that_stay(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.health_status = 500
    patient = QUICK.model_copy(update={"failures_to_eject": 1000})
    async with watching([endpoint], patient) as observers:
        await until(lambda: observers.counts[endpoint.address].probes > 5)
        assert endpoint.health.healthy
        await observers.replace(QUICK, [endpoint])
        await until(lambda: not endpoint.health.healthy)


async def test_another_endpoint_at_the_same_address_gets_a_watch_of_its_own(endpoint: Endpoint) -> None:
    async with watching([endpoint]) as observers:
        await until(lambda: not endpoint.report.stale)
        renewed = make_endpoint(endpoint.address, "m")
        await observers.replace(QUICK, [renewed])
        await until(lambda: not renewed.report.stale)
