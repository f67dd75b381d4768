"""The hazards of a KV connector, as a careless caller meets them on a simulated engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from fairlead.tools.simulate.kv_exchange import ConnectorKind, KvExchange, KvOptions
from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine
from fairlead.tools.simulate.tokens import from_ids
from tests.tools.simulate.conftest import FAST, WITHIN_S
from tests.waiting import until

IDS = list(range(640))
SOON_S = 0.2  # of an abort timeout that a test waits for; the others are longer than any test


@pytest.fixture
async def start() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def started(kind: ConnectorKind = "mooncake", abort_timeout_s: float = 600.0) -> RunningEngine:
            kv = KvOptions(kind, abort_timeout_s=abort_timeout_s)
            return await stack.enter_async_context(running_engine(EngineOptions("m", parameters=FAST, kv=kv)))

        yield started


def exchange(engine: RunningEngine) -> KvExchange:
    assert engine.exchange is not None
    return engine.exchange


async def complete(engine: RunningEngine, ids: list[int], **params: Any) -> dict[str, Any]:
    body = {"prompt": ids, "max_tokens": 1, "kv_transfer_params": params}
    async with httpx.AsyncClient(timeout=WITHIN_S) as client:
        response = await client.post(f"http://{engine.address}/v1/completions", json=body)
        return dict(response.raise_for_status().json())


async def export(engine: RunningEngine, ids: list[int] = IDS) -> dict[str, Any]:
    return await complete(engine, ids, do_remote_decode=True, do_remote_prefill=False, transfer_id="x")


def keys(engine: RunningEngine, **other: Any) -> dict[str, Any]:
    found = {
        "remote_engine_id": exchange(engine).engine_id,
        "remote_bootstrap_addr": f"http://{exchange(engine).address}",
    }
    return {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": "x"} | found | other


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_shorter_prompt_than_the_export_installs_wrong_kv(start: Any) -> None:
    source, target = await start(), await start()
    await export(source)
    await complete(target, IDS[:320], **keys(source))
    assert exchange(target).wrong_kv == 1


@pytest.mark.parametrize("missing", ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"])
async def test_an_import_without_a_key_is_never_answered(start: Any, missing: str) -> None:
    source, target = await start(), await start(abort_timeout_s=SOON_S)
    await export(source)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3 * SOON_S):
            await complete(target, IDS, **keys(source, **{missing: None}))


@pytest.mark.parametrize("other", [{"transfer_id": "y"}, {"remote_engine_id": "of its last life"}])
async def test_an_import_that_meets_nothing_waits_and_then_computes(start: Any, other: dict[str, str]) -> None:
    source, target = await start(abort_timeout_s=SOON_S), await start(abort_timeout_s=SOON_S)
    await export(source)
    began_s = asyncio.get_running_loop().time()
    assert cached(await complete(target, IDS, **keys(source, **other))) == 0
    assert asyncio.get_running_loop().time() - began_s >= SOON_S


async def test_exported_blocks_are_pinned_until_the_abort_timeout(start: Any) -> None:
    source = await start(abort_timeout_s=SOON_S)
    await complete(source, IDS)
    await exchange(source).offer({"do_remote_decode": True, "transfer_id": "x"}, from_ids(IDS, FAST.block_size))
    assert source.engine.pool.used == exchange(source).pinned_blocks == len(IDS) // FAST.block_size
    await until(lambda: source.engine.pool.used == 0)


async def test_a_prompt_longer_than_its_export_kills_an_engine_with_nixl(start: Any) -> None:
    source, target = await start("nixl"), await start("nixl")
    answer = await export(source)
    asking = asyncio.create_task(complete(target, [*IDS, *IDS], **answer["kv_transfer_params"]))
    async with httpx.AsyncClient(timeout=WITHIN_S) as client:

        async def is_down() -> bool:
            return (await client.get(f"http://{target.address}/health")).status_code != 200

        await until(is_down, "the engine is dead")
    asking.cancel()
    await asyncio.wait([asking])


async def test_a_target_that_comes_after_nixls_lease_reads_what_is_there_by_then(start: Any) -> None:
    source, target = await start("nixl", SOON_S), await start("nixl", SOON_S)
    answer = await export(source)
    await until(lambda: exchange(source).pinned_blocks == 0)
    await complete(target, IDS, **answer["kv_transfer_params"])
    assert exchange(target).wrong_kv == 1
