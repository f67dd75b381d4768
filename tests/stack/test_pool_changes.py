"""The pool changes under load, through a real Envoy that is never restarted: nothing is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.config import load
from fairlead.gateway.guard import model_cluster
from fairlead.gateway.remembered import file_of, prepare
from tests.stack.changing import ChangingPool, changing_pool
from tests.waiting import until

pytestmark = pytest.mark.stack


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ChangingPool]:
    async with changing_pool(tmp_path) as made:
        yield made


@pytest.fixture
def remembered(pool: ChangingPool, tmp_path: Path) -> ChangingPool:
    """Its sidecar and its Envoy share a folder."""
    pool.document["gateway"]["remember"] = str(tmp_path / "kept")
    return pool


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


async def test_a_model_that_only_discovery_knows_is_served_by_its_engine_while_the_sidecar_is_away(
    pool: ChangingPool,
) -> None:
    small, large = await pool.add(12), await pool.add(1, model="large")
    pool.lists([*small, *large])
    await pool.start()

    async def is_known() -> bool:
        return await pool.known_to_envoy() == {*small, *large}

    await until(is_known, "Envoy knows all engines")
    pool.kill_sidecar()
    assert [await pool.ask("large") for _ in range(20)] == [200] * 20
    assert await pool.ask("unknown") == 404


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


async def test_envoy_that_starts_while_the_sidecar_is_away_serves_from_the_engines_that_the_last_one_knew(
    remembered: ChangingPool,
) -> None:
    pool = remembered
    small, large, gone = await pool.add(2), await pool.add(1, model="large"), await pool.add(1)
    pool.document |= {"pool": {"models": {"small": {}, "large": {}}}, "routes": {"auto": ["large", "small"]}}
    pool.lists([*small, *large, *gone])
    pool.write()
    await pool.start_sidecar()
    await until(lambda: kept_for(pool) == {*small, *large, *gone}, "the files have the pool")
    pool.lists([*small, *large])
    await until(lambda: kept_for(pool) == {*small, *large}, "what is gone has left the files")
    pool.kill_sidecar()
    await pool.start_envoy()
    assert [await pool.ask(model) for model in ("small", "large", "auto", "unknown")] == [200, 200, 200, 404]
    assert await pool.known_to_envoy() == set()
    assert await pool.known_to_envoy("remembered:model:large") == set(large)
    assert kept_for(pool) == {*small, *large}


async def test_a_request_that_names_an_adapter_beside_its_model_is_served_where_that_is_listed(
    pool: ChangingPool,
) -> None:
    plain = await pool.add(2, kind="sglang")
    (able,) = await pool.add(1, kind="sglang", adapters=("sql",))
    pool.lists([*plain, able])
    await pool.start()

    async def is_listed() -> bool:
        return await pool.ask("small:sql") == 200

    await until(is_listed, "the adapter is known")
    asked = [await pool.post(lora_path="sql") for _ in range(12)]
    assert set(asked) == {(200, able)}
    assert pool.engines[able][0].engine.adapters.loads == 1


async def test_a_sidecar_that_is_back_takes_over_from_what_envoy_remembers_and_no_request_is_lost(
    remembered: ChangingPool,
) -> None:
    pool = remembered
    first = await pool.add(2)
    pool.lists(first)
    pool.write()
    await pool.start_sidecar()
    await until(lambda: kept_for(pool) == set(first), "the files have the pool")
    pool.kill_sidecar()
    await pool.start_envoy()
    more = await pool.add(1)
    async with pool.load() as seen:
        await until(lambda: seen.unadvised > 50, "Envoy serves by itself")
        pool.lists([*first, *more])
        await pool.start_sidecar()
        await until(lambda: {*first, *more} <= set(seen.first_s), "the sidecar's engines serve")

        async def is_followed() -> bool:
            return await pool.known_to_envoy() == await pool.known_to_envoy("remembered:engines") == {*first, *more}

        await until(is_followed, "Envoy knows them from the sidecar, and from the file")
    assert seen.lost == []


async def test_with_several_models_each_request_is_served_by_its_own_before_and_after_the_sidecar_is_back(
    remembered: ChangingPool,
) -> None:
    pool, models = remembered, ("small", "large", "code")
    pool.document["pool"] = {"models": {model: {} for model in models}}
    of = {model_cluster(model): set(await pool.add(2, model=model)) for model in models}
    engines = set().union(*of.values())
    pool.lists(engines)
    pool.write()
    await pool.start_sidecar()

    def are_written() -> bool:
        files = {"engines": engines, **of}
        return all(kept_for(pool, cluster) == addresses for cluster, addresses in files.items())

    await until(are_written, "the files have the pool")
    pool.kill_sidecar()
    await pool.start_envoy()
    async with pool.load(models=models) as seen:
        await until(lambda: seen.unadvised > 50, "Envoy serves by itself")
        await pool.start_sidecar()
        await until(lambda: engines <= set(seen.first_s), "all are chosen and serve")
        advised = seen.statuses[200] - seen.unadvised
        await until(lambda: seen.statuses[200] - seen.unadvised > advised + 200, "they serve on")
    assert seen.lost == []


async def test_engines_that_were_all_replaced_while_the_sidecar_was_away_get_only_requests_for_their_model(
    pool: ChangingPool,
) -> None:
    models = ("small", "large", "code")
    pool.document["pool"] = {"models": {model: {} for model in models}}
    pool.lists([address for model in models for address in await pool.add(1, model=model)])
    await pool.start()
    async with pool.load(models=models) as seen:
        pool.kill_sidecar()
        new = [address for model in models for address in await pool.add(1, model=model)]
        pool.lists(new)
        blind = seen.unadvised
        await until(lambda: seen.unadvised > blind + 50, "Envoy serves by itself, from those that it knows")
        await pool.start_sidecar()
        await until(lambda: set(new) <= set(seen.first_s), "the new ones serve")
    assert seen.lost == []


@pytest.mark.parametrize("content", [b"", b'{"resources": [{"@type": "type.goo', b"\xff" * 1000])
async def test_a_file_that_envoy_cannot_read_harms_nothing_and_is_replaced_by_the_sidecar(
    remembered: ChangingPool, content: bytes
) -> None:
    pool = remembered
    listed, found = await pool.add(1), await pool.add(1)
    pool.document["pool"] = {"endpoints": [{"address": listed[0], "model": "small"}]}
    pool.lists(found)
    prepare(load(pool.write()))
    file_for(pool).write_bytes(content)
    await pool.start_envoy()
    assert await pool.ask("small") == 200
    await pool.start_sidecar()

    async def is_right() -> bool:
        return await pool.known_to_envoy("remembered:engines") == {*listed, *found}

    await until(is_right, "Envoy has what the sidecar wrote")


def file_for(pool: ChangingPool, cluster: str = "engines") -> Path:
    return file_of(Path(pool.document["gateway"]["remember"]), cluster)


def kept_for(pool: ChangingPool, cluster: str = "engines") -> set[str]:
    """Addresses in the file of all engines, or of another cluster."""
    path = file_for(pool, cluster)
    if not path.exists():
        return set()
    return {
        "{address}:{port_value}".format(**host["endpoint"]["address"]["socket_address"])
        for resource in json.loads(path.read_bytes())["resources"]
        for locality in resource["endpoints"]
        for host in locality.get("lb_endpoints", ())
    }


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
