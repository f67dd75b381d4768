"""Who of many discovered endpoints is in the pool, without the network."""

from __future__ import annotations

import pytest

from fairlead.access import PLAIN, Access
from fairlead.core.endpoint import Endpoint
from fairlead.core.pool import Pool
from fairlead.discovery import DiscoveredEndpoint, Discovery, SourceStatus
from fairlead.engines import introduction
from fairlead.engines.introduction import FoundEngine
from fairlead.serving import membership
from fairlead.serving.membership import Membership
from tests.core.world import make_endpoint
from tests.waiting import until


async def test_a_whole_pool_that_is_replaced_at_once_is_looked_at_once_and_not_for_each_that_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def listed(address: str, _: Access) -> tuple[FoundEngine, str]:
        return FoundEngine(address, "llama", "vllm", 4096), ""

    looks = 0
    serves = membership._serves

    def look(endpoint: Endpoint) -> bool:
        nonlocal looks
        looks += 1
        return serves(endpoint)

    monkeypatch.setattr(introduction, "_listed", listed)
    monkeypatch.setattr(membership, "_serves", look)
    discovery = Discovery(lambda: None, lambda: 0.0)
    status = SourceStatus("file", lambda: 0.0)
    discovery.statuses = (status,)
    joined = Membership(discovery, lambda: None, lambda: 0.0)

    async def members(name: str, pool: Pool) -> Pool:
        status.endpoints = tuple(DiscoveredEndpoint(f"10.{name}.0.{number}:8000") for number in range(200))
        joined.members(pool, lambda _: PLAIN)
        await until(lambda: not joined._introductions.awaited)
        found = joined.members(pool, lambda _: PLAIN)
        return Pool([make_endpoint(each.found.address, each.model) for each in found], {})

    pool = await members("1", Pool([], {}))
    looks = 0
    pool = await members("2", pool)
    joined.members(pool, lambda _: PLAIN)
    assert len(pool.endpoints) == 400, "those that leave stay until one of the new has served"
    assert looks <= 3 * 2 * 200
    await joined.stop()
