"""The pool changes under load, through a real Envoy that is never restarted: nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.stack.changing import ChangingPool, changing_pool
from tests.waiting import until

pytestmark = pytest.mark.stack


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChangingPool]:
    async with changing_pool(tmp_path) as made:
        yield made


async def test_engines_come_and_go_under_load_and_no_request_is_lost(pool: ChangingPool) -> None:
    first = await pool.add(2)
    pool.lists(first)
    await pool.start()
    async with pool.load() as seen:
        await until(lambda: set(first) <= set(seen.first_s), "both serve")
        more = await pool.add(10)
        pool.lists([*first, *more])
        await until(lambda: set(more) <= set(seen.first_s), "the new ones serve")
        new = await pool.add(2)
        pool.lists(new)  # all others at once
        await until(lambda: set(new) <= set(seen.first_s), "the newest serve")
        await until(lambda: gone_from(pool, set(new)), "the others are gone")
        await pool.stop([*first, *more])
        before = seen.statuses[200]
        await until(lambda: seen.statuses[200] > before + 100, "they serve on")
    assert seen.lost == []
    assert seen.unadvised == 0


async def gone_from(pool: ChangingPool, left: set[str]) -> bool:
    return await pool.up() == left == await pool.known_to_envoy()


async def test_envoy_keeps_its_engines_while_the_sidecar_is_away_and_follows_it_when_it_is_back(
    pool: ChangingPool,
) -> None:
    first = await pool.add(2)
    pool.lists(first)
    await pool.start()
    async with pool.load() as seen:
        await until(lambda: set(first) <= set(seen.first_s), "both serve")
        pool.kill_sidecar()
        more = await pool.add(2)
        pool.lists([*first, *more])
        blind = seen.unadvised
        await until(lambda: seen.unadvised > blind + 50, "Envoy serves by itself")
        assert await pool.known_to_envoy() == set(first)
        await pool.start_sidecar()
        await until(lambda: set(more) <= set(seen.first_s), "engines that came meanwhile serve")
    assert seen.lost == []


async def test_envoy_that_starts_while_the_sidecar_is_away_serves_from_the_engines_that_the_configuration_lists(
    pool: ChangingPool,
) -> None:
    listed, large, other = await pool.add(2), await pool.add(1, model="large"), await pool.add(1)
    entries = [{"address": each, "model": "small"} for each in listed] + [{"address": large[0], "model": "large"}]
    pool.document |= {"pool": {"endpoints": entries}, "routes": {"auto": ["large", "small"]}}
    pool.lists(other)
    pool.write()
    await pool.start_envoy()
    assert [await pool.ask(model) for model in ("small", "large", "auto", "unknown")] == [200, 200, 200, 404]
    assert await pool.known_to_envoy() == set()
    await pool.start_sidecar()
    async with pool.load() as seen:
        await until(lambda: {*listed, *other} <= set(seen.first_s), "the sidecar's engines serve")

        async def is_followed() -> bool:
            return await pool.known_to_envoy("followed:model:small") == {*listed, *other}

        await until(is_followed, "Envoy knows them for requests without advice, too")
        await pool.stop(listed)
        kept = await pool.known_to_envoy()
        pool.kill_sidecar()
        blind = seen.unadvised
        await until(lambda: seen.unadvised > blind + 50, "Envoy serves by itself")
        assert await pool.known_to_envoy() == kept == {*listed, *large, *other}


async def test_an_engine_that_a_static_envoy_does_not_know_is_reported_and_gets_nothing(pool: ChangingPool) -> None:
    first, second = await pool.add(2)
    listed = [{"address": address, "model": "small"} for address in (first, second)]
    pool.document |= {"discovery": {}, "pool": {"endpoints": listed[:1]}}
    pool.document["gateway"]["endpoints"] = "static"
    await pool.start()
    async with pool.load() as seen:
        await until(lambda: first in seen.first_s, "the first serves")
        pool.document["pool"] = {"endpoints": listed}
        pool.write()
        await until(lambda: "Envoy sent its requests elsewhere" in pool.log(), "it is reported")
        assert await pool.up() == {first}
    assert seen.lost == []
    assert set(seen.first_s) == {first}
