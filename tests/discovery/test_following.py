"""Several sources at once: what they list is merged, and each one's failures are its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead.discovery import DiscoveredEndpoint, Discovery, EndpointSet, SourceStatus
from tests.waiting import until


class Scripted:
    """A source that yields what a test puts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: asyncio.Queue[EndpointSet | Exception] = asyncio.Queue()

    def put(self, *addresses: str, region: str = "") -> None:
        self.steps.put_nowait(tuple(DiscoveredEndpoint(address, region=region) for address in addresses))

    async def sets(self, _: SourceStatus) -> AsyncIterator[EndpointSet]:
        while True:
            step = await self.steps.get()
            if isinstance(step, Exception):
                raise step
            yield step


class World:
    def __init__(self) -> None:
        self.changes = asyncio.Queue[None]()
        self.discovery = Discovery(lambda: self.changes.put_nowait(None), asyncio.get_running_loop().time)

    async def next(self) -> list[str]:
        async with asyncio.timeout(60):
            await self.changes.get()
        return [each.address for each in self.discovery.endpoints()]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.discovery.stop()


async def test_sets_are_merged_and_the_first_source_wins_where_two_list_one_address(world: World) -> None:
    one, other = Scripted("one"), Scripted("other")
    await world.discovery.follow([one, other])
    assert await world.next() == []
    other.put("a:1", "b:1", region="theirs")
    assert await world.next() == ["a:1", "b:1"]
    assert not world.discovery.is_synced
    one.put("b:1", "c:1", region="ours")
    assert await world.next() == ["b:1", "c:1", "a:1"]
    assert world.discovery.is_synced
    assert {e.address: e.region for e in world.discovery.endpoints()}["b:1"] == "ours"


async def test_the_same_set_again_changes_nothing(world: World) -> None:
    source = Scripted("one")
    await world.discovery.follow([source])
    await world.next()
    source.put("a:1")
    await world.next()
    source.put("a:1")
    source.put("b:1")
    assert await world.next() == ["b:1"]
    assert world.discovery.statuses[0].changes == 2


async def test_a_source_that_fails_keeps_its_last_set_and_is_asked_again(world: World) -> None:
    source = Scripted("one")
    await world.discovery.follow([source])
    await world.next()
    source.put("a:1")
    await world.next()
    source.steps.put_nowait(RuntimeError("gone"))
    source.put("b:1")
    (status,) = world.discovery.statuses
    await until(lambda: status.error)
    assert [e.address for e in world.discovery.endpoints()] == ["a:1"]
    assert "gone" in status.error
    assert await world.next() == ["b:1"]
    assert (status.error, status.failures) == ("", 1)


async def test_a_source_that_stays_over_a_reload_keeps_its_set_until_it_has_a_new_one(world: World) -> None:
    source = Scripted("one")
    await world.discovery.follow([source])
    await world.next()
    source.put("a:1")
    await world.next()
    await world.discovery.follow([Scripted("one")])
    assert await world.next() == ["a:1"]
    await world.discovery.follow([])
    assert await world.next() == []
