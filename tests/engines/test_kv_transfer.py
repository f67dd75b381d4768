"""Copies of KV between two simulated engines that have the hazards of real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from aiohttp import web

from fairlead.engines.kv_transfer import (
    Connector,
    Copied,
    Deadlines,
    Party,
    Prompt,
    TransferError,
    _is_the_prompt,
    copy_kv,
    tokenize,
)
from fairlead.engines.mooncake import Mooncake
from fairlead.engines.nixl import Nixl
from fairlead.tools.simulate.faults import Fault, Leg
from fairlead.tools.simulate.kv_exchange import ConnectorKind, KvOptions
from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine
from tests.engines.world import PATIENT, soon
from tests.tools.simulate.conftest import FAST, WITHIN_S
from tests.waiting import until

BLOCK: Final = FAST.block_size
IDS: Final = list(range(1000, 1000 + 60 * BLOCK))
CONNECTORS: Final[dict[ConnectorKind, Connector]] = {"mooncake": Mooncake(), "nixl": Nixl()}


class Pair:
    """Two engines of one model; the source has the prompt in its cache."""

    def __init__(
        self, kind: ConnectorKind, source: RunningEngine, target: RunningEngine, session: aiohttp.ClientSession
    ):
        self.connector = CONNECTORS[kind]
        self.source, self.target, self.session = source, target, session

    def party(self, engine: RunningEngine) -> Party:
        assert engine.exchange is not None
        return Party(engine.address, engine.exchange.address)

    async def ask(self, engine: RunningEngine, ids: list[int] = IDS, **more: Any) -> dict[str, Any]:
        body = {"model": "m", "prompt": ids, "max_tokens": 1, "ignore_eos": True, "temperature": 0} | more
        async with self.session.post(f"http://{engine.address}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())

    async def cached_tokens(self, engine: RunningEngine) -> int:
        usage = (await self.ask(engine))["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    async def copy(self, ids: list[int] = IDS, deadlines: Deadlines = PATIENT) -> Copied:
        source, target = self.party(self.source), self.party(self.target)
        return await copy_kv(self.connector, source, target, Prompt("m", ids, BLOCK), deadlines)

    async def failure(self, deadlines: Deadlines = PATIENT) -> tuple[str, str]:
        with pytest.raises(TransferError) as failed:
            await self.copy(deadlines=deadlines)
        return failed.value.stage, failed.value.reason

    def assert_nothing_wrong_was_installed(self) -> None:
        assert self.target.exchange is not None
        assert self.target.exchange.wrong_kv == 0


def options(kind: ConnectorKind, abort_s: float = 600.0, **more: Any) -> EngineOptions:
    return EngineOptions(model="m", parameters=FAST, kv=KvOptions(kind, abort_timeout_s=abort_s), **more)


async def pairs(kind: ConnectorKind, abort_s: float = 600.0, **target: Any) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(running_engine(options(kind, abort_s)))
        other = await stack.enter_async_context(running_engine(options(kind, abort_s, **target)))
        pair = Pair(kind, source, other, await stack.enter_async_context(aiohttp.ClientSession()))
        await pair.ask(source)
        yield pair


@pytest.fixture(params=["mooncake", "nixl"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async for each in pairs(request.param):
        yield each


@pytest.fixture
async def mooncake() -> AsyncIterator[Pair]:
    async for each in pairs("mooncake"):
        yield each


async def test_after_a_copy_the_target_serves_the_prompt_from_its_cache(pair: Pair) -> None:
    copied = await pair.copy()
    assert copied.tokens == len(IDS)
    assert copied.transferred_tokens == len(IDS) - BLOCK  # the last block is computed for its last token
    told_bytes = copied.transferred_tokens * KvOptions("nixl").bytes_per_token
    assert copied.transferred_bytes == (told_bytes if isinstance(pair.connector, Nixl) else None)
    assert set(copied.seconds) == {"discover", "export", "import", "confirm"}
    assert await pair.cached_tokens(pair.target) == len(IDS) - BLOCK
    pair.assert_nothing_wrong_was_installed()


async def test_the_source_gives_its_blocks_free_once_they_are_taken(pair: Pair) -> None:
    await pair.copy()
    assert pair.source.exchange is not None
    assert pair.source.exchange.pinned_blocks == 0
    assert pair.source.engine.pool.used == 0


async def test_what_the_source_no_longer_holds_is_no_copy_but_its_pinned_blocks_are_taken(pair: Pair) -> None:
    pair.source.engine.pool.clear_cache()
    assert await pair.failure() == ("export", "not_cached")
    assert pair.source.engine.pool.used == 0


async def test_an_import_that_brought_nothing_is_no_copy(pair: Pair) -> None:
    await pair.ask(pair.target)  # it holds all of it: nothing comes
    assert await pair.failure(soon("confirm")) == ("confirm", "nothing_came")


async def test_a_rise_by_less_than_the_prompt_is_no_proof() -> None:
    """Another import raises the same counter, while ours finds nothing and the target computes the prompt itself."""
    async for pair in pairs("mooncake", abort_s=1.0):
        pair.target.faults.set(Fault("slow", delay_ms=200, only="import"))
        copying = asyncio.create_task(pair.failure(soon("confirm")))
        await until(partial(_pins, pair.source))
        assert pair.source.exchange is not None
        for name in list(pair.source.exchange._exports):
            pair.source.exchange._release(name)
        pair.target.engine.counters.prompt_external += 4 * BLOCK
        assert await copying == ("confirm", "too_little_came")


def _pins(source: RunningEngine) -> bool:
    return source.exchange is not None and source.exchange.pinned_blocks > 0


@pytest.mark.parametrize(
    ("came", "local", "computed", "known", "is_it"),
    [
        (60 * BLOCK, 0, BLOCK, 0, True),
        (4 * BLOCK, 0, 60 * BLOCK, 0, False),  # another import's
        (30 * BLOCK, 30 * BLOCK, BLOCK, 0, True),  # the target held half of it
        (4 * BLOCK, 60 * BLOCK, 60 * BLOCK, 0, False),  # another request's hits
        (30 * BLOCK, 60 * BLOCK, 90 * BLOCK, 30 * BLOCK, True),  # others are served meanwhile
    ],
)
def test_a_copy_is_proven_by_a_rise_about_its_size(
    came: int, local: int, computed: int, known: int, is_it: bool
) -> None:
    assert _is_the_prompt(came, local, computed, Prompt("m", IDS, BLOCK, known_tokens=known)) == is_it


@pytest.mark.parametrize("leg", ["export", "import"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("hang"), "timeout"),
        (Fault("reset"), "connect"),
        (Fault("cut"), "protocol"),
        (Fault("error"), "status"),
        (Fault("miscount"), "tokens"),
    ],
    ids=lambda each: each.kind if isinstance(each, Fault) else "",
)
async def test_a_leg_that_goes_wrong_ends_the_copy_within_its_deadline(
    pair: Pair, leg: Leg, fault: Fault, reason: str
) -> None:
    engine = pair.source if leg == "export" else pair.target
    engine.faults.set(msgspec.structs.replace(fault, only=leg))
    async with asyncio.timeout(WITHIN_S / 2):
        assert await pair.failure(soon(leg) if fault.kind == "hang" else PATIENT) == (leg, reason)
    pair.assert_nothing_wrong_was_installed()
    engine.faults.set(None)
    assert await pair.cached_tokens(engine) >= 0  # it serves on


async def test_a_source_that_dies_before_the_import_leaves_the_copy_undone(mooncake: Pair) -> None:
    mooncake.target.faults.set(Fault("slow", delay_ms=1e9, only="import"))  # until the source is gone
    copying = asyncio.create_task(mooncake.copy(deadlines=soon("import")))
    exchange = mooncake.source.exchange
    assert exchange is not None
    await until(lambda: exchange.pinned_blocks > 0)
    await mooncake.source.stop()
    mooncake.target.faults.set(None)
    with pytest.raises(TransferError) as failed:
        await copying
    assert failed.value.stage in ("import", "confirm")
    mooncake.assert_nothing_wrong_was_installed()


async def test_a_source_without_its_bootstrap_server_is_not_asked_to_export(mooncake: Pair) -> None:
    mooncake.source.faults.set(Fault("no_bootstrap"))
    assert await mooncake.failure() == ("discover", "connect")
    assert mooncake.source.engine.counters.finished == 1


async def test_a_restarted_source_is_asked_for_its_new_id(mooncake: Pair) -> None:
    await mooncake.copy()
    await mooncake.source.stop()
    async with running_engine(options("mooncake")) as again:
        mooncake.source = again
        await mooncake.ask(again, IDS[: 40 * BLOCK])
        mooncake.target.engine.pool.clear_cache()
        assert (await mooncake.copy(IDS[: 40 * BLOCK])).tokens == 40 * BLOCK


async def test_an_old_target_is_never_asked_to_import() -> None:
    async for old in pairs("mooncake", version="0.29.1"):
        assert await old.failure() == ("discover", "version")
        assert old.source.engine.counters.finished == 1


async def test_an_import_that_the_engine_has_no_room_for_is_no_copy() -> None:
    small = EngineParameters(prefill_ms_per_token=0.001, step_overhead_ms=0.1, num_blocks=64)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(running_engine(options("mooncake")))
        target = await stack.enter_async_context(
            running_engine(EngineOptions(model="m", parameters=small, kv=KvOptions("mooncake")))
        )
        pair = Pair("mooncake", source, target, await stack.enter_async_context(aiohttp.ClientSession()))
        await pair.ask(source)
        target.engine.pool.acquire((), 0, 30)
        assert await pair.failure(soon("import")) == ("import", "timeout")


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"{}", b'{"0":{}}', b'{"0":{"engine_id":""}}', b'{"0":{"engine_id":"a"},"1":{"engine_id":"b"}}'],
)
async def test_a_bootstrap_server_that_does_not_name_one_engine_ends_the_copy(mooncake: Pair, answer: bytes) -> None:
    async def query(_: web.Request) -> web.Response:
        return web.Response(body=answer)

    app = web.Application()
    app.router.add_get("/query", query)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    source = Party(mooncake.source.address, f"127.0.0.1:{runner.addresses[0][1]}")
    target = mooncake.party(mooncake.target)
    with pytest.raises(TransferError, match="discover"):
        await copy_kv(Mooncake(), source, target, Prompt("m", IDS, BLOCK), PATIENT)
    await runner.cleanup()


async def test_a_bootstrap_server_that_never_answers_is_waited_for_no_longer_than_was_said() -> None:
    async def never(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(TransferError, match="discover: timeout"):
            await asyncio.wait_for(Mooncake().discover(Party("", f"{host}:{port}"), 0.1), WITHIN_S / 2)


async def test_ids_are_those_that_the_engine_makes_of_the_messages(mooncake: Pair) -> None:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "one two three"}]})
    ids = await tokenize(mooncake.party(mooncake.source), body, WITHIN_S)
    assert len(ids) > 3
    with pytest.raises(TransferError, match="tokenize: status"):
        await tokenize(mooncake.party(mooncake.source), b'{"model":"other","prompt":"a"}', WITHIN_S)
