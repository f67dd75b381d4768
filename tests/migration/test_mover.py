"""A session moves between simulated engines, or stays exactly as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from fairlead.core.moves import Stay
from fairlead.migration import mover
from fairlead.tools.simulate.faults import Fault, FaultKind, Leg
from fairlead.tools.simulate.server import running_engine
from tests.engines.world import soon
from tests.migration.world import Turn, World, conversation, options
from tests.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World([await stack.enter_async_context(running_engine(options())) for _ in range(2)])
        yield world
        await world.mover.stop()


def assert_it_stayed(world: World, turn: Turn) -> None:
    assert world.lives_at(turn) == world.host.address
    assert world.credited_blocks(turn) == 0
    exchange = world.engines[1].exchange
    assert exchange is not None
    assert exchange.wrong_kv == 0


async def test_a_session_moves_and_its_next_turn_is_served_from_the_targets_cache(world: World) -> None:
    turn = await world.turn()
    await world.copy(turn)
    assert world.lives_at(turn) == world.target.address
    assert world.planner.done == {"copy": 1}
    assert await world.cached_share(world.target, turn) > 0.95
    assert world.mover.counts.tokens > 2800


async def test_bytes_are_counted_where_the_models_bytes_a_token_are_known_and_not_guessed_elsewhere(
    world: World,
) -> None:
    await world.copy(await world.turn("unknown"))
    assert (world.mover.counts.tokens > 0, world.mover.counts.bytes) == (True, 0)
    before = world.mover.counts.tokens
    world.mover.kv_bytes_per_token = {"m": 1000}
    await world.copy(await world.turn("known"))
    assert world.mover.counts.bytes == (world.mover.counts.tokens - before) * 1000 > 0


async def test_the_index_credits_the_target_with_what_was_copied_and_no_more(world: World) -> None:
    turn = await world.turn()
    await world.copy(turn)
    share = world.credited_blocks(turn) / len(turn.facts.prefix)
    assert 0.9 < share <= await world.cached_share(world.target, turn) + 0.01


async def test_the_session_stays_at_the_bound_endpoint_until_the_copy_is_confirmed(world: World) -> None:
    turn = await world.turn()
    world.engines[1].faults.set(Fault("slow", delay_ms=150, only="import"))
    world.mover.offer(turn.move, turn.facts, "/v1/chat/completions", turn.body)
    exchange = world.engines[0].exchange
    assert exchange is not None
    await until(lambda: exchange.pinned_blocks > 0)
    assert_it_stayed(world, turn)
    await world.idle()
    assert world.lives_at(turn) == world.target.address


async def test_a_turn_during_the_move_is_served_by_the_bound_endpoint_and_the_session_moves_all_the_same(
    world: World,
) -> None:
    turn = await world.turn()
    world.engines[1].faults.set(Fault("slow", delay_ms=100, only="import"))
    world.mover.offer(turn.move, turn.facts, "/v1/chat/completions", turn.body)
    later = world.facts(conversation("s", 9), "s")
    world.router.commit(later, world.host.address, 0.0)
    assert world.lives_at(turn) == world.host.address
    await world.idle()
    assert world.lives_at(turn) == world.target.address


@pytest.mark.parametrize("leg", ["export", "import"])
@pytest.mark.parametrize("kind", ["hang", "reset", "cut", "error", "miscount"])
async def test_a_copy_that_fails_leaves_the_session_where_it_was(world: World, leg: Leg, kind: FaultKind) -> None:
    turn = await world.turn()
    (world.engines[0] if leg == "export" else world.engines[1]).faults.set(Fault(kind, only=leg))
    if kind == "hang":
        world.mover.deadlines = soon(leg)
    await world.copy(turn)
    assert_it_stayed(world, turn)
    assert sum(world.mover.counts.failed.values()) == 1
    assert next(iter(world.mover.counts.failed))[0] == leg


@pytest.mark.parametrize("dies", [0, 1])
async def test_an_engine_that_dies_during_the_copy_leaves_the_session_where_it_was(world: World, dies: int) -> None:
    turn = await world.turn()
    world.engines[1].faults.set(Fault("slow", delay_ms=100, only="import"))
    world.mover.deadlines = soon("import")
    world.mover.offer(turn.move, turn.facts, "/v1/chat/completions", turn.body)
    exchange = world.engines[0].exchange
    assert exchange is not None
    await until(lambda: exchange.pinned_blocks > 0)
    await world.engines[dies].stop()
    await world.idle()
    assert_it_stayed(world, turn)
    assert {stage for stage, _ in world.mover.counts.failed} <= {"import", "confirm"}


async def test_a_target_that_restarted_during_the_copy_is_not_believed(world: World) -> None:
    turn = await world.turn()
    world.target.generation += 1
    await world.copy(turn)
    assert_it_stayed(world, turn)
    assert world.mover.counts.dropped == {"target_restarted": 1}


async def test_a_target_that_is_ejected_during_the_copy_gets_no_session(world: World) -> None:
    turn = await world.turn()
    world.target.health.healthy = False
    await world.copy(turn)
    assert_it_stayed(world, turn)


async def test_a_session_that_went_elsewhere_meanwhile_is_left_there(world: World) -> None:
    turn = await world.turn()
    world.router.sessions.bind(turn.move.session, "c:1", 0)
    await world.copy(turn)
    assert world.lives_at(turn) == "c:1"
    assert world.mover.counts.dropped == {"session_gone": 1}


async def test_another_sidecar_that_was_first_keeps_what_it_bound(world: World) -> None:
    def decided(session: bytes) -> bool:
        world.router.sessions.learn(session, "c:1", 0)
        return True

    world.mover = mover.Mover(world.router, lambda: 0.0, decided)
    world.mover.bootstraps = world.bootstraps()
    turn = await world.turn()
    await world.copy(turn)
    assert world.lives_at(turn) == "c:1"
    assert world.mover.counts.dropped == {"moved_elsewhere": 1}
    await world.mover.stop()


async def test_two_sessions_of_one_endpoint_do_not_move_at_once(world: World) -> None:
    first = await world.turn("one")
    facts = world.facts(conversation("two", 1), "two")
    world.router.commit(facts, world.host.address, 0.0)
    held = {world.host.address: facts.tokens}
    assert world.planner.consider(facts, world.host, world.router.pool.endpoints, held, 0.0) == Stay("busy")
    await world.copy(first)
    assert world.lives_at(first) == world.target.address


IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


@pytest.mark.parametrize(
    ("path", "changed", "reason"),
    [
        ("/v1/responses", {}, "api"),
        ("/v1/chat/completions", {"messages": IMAGE}, "media"),
        ("/v1/completions", {"prompt": [1, 2]}, "api"),
        ("/v1/completions", {}, "body"),
        ("/v1/chat/completions", {"documents": [{"title": "a", "text": "b"}]}, "parameters"),
        ("/v1/chat/completions", {"reasoning_effort": "high"}, "parameters"),
        ("/v1/chat/completions", {"truncate_prompt_tokens": 5}, "parameters"),
        ("/v1/chat/completions", {"tool_choice": "none"}, "parameters"),
    ],
)
async def test_what_token_ids_cannot_say_is_not_copied_and_blames_nobody(
    world: World, path: str, changed: dict[str, Any], reason: str
) -> None:
    turn = await world.turn()
    turn.body = msgspec.json.encode(msgspec.json.decode(turn.body) | changed)
    await world.copy(turn, path)
    assert_it_stayed(world, turn)
    assert world.mover.counts.dropped == {reason: 1}


async def test_a_session_with_a_salt_moves_with_it(world: World) -> None:
    turn = await world.turn(cache_salt="tenant one")
    await world.copy(turn)
    assert world.lives_at(turn) == world.target.address
    assert await world.cached_share(world.target, turn) > 0.95
    other = msgspec.json.encode(msgspec.json.decode(turn.body) | {"cache_salt": "tenant two"})
    assert await world.cached_share(world.target, Turn(turn.facts, other, turn.move)) == 0


async def test_parameters_that_change_no_prompt_are_no_reason_to_stay(world: World) -> None:
    turn = await world.turn(tool_choice="auto", reasoning_effort=None, documents=[])
    await world.copy(turn)
    assert world.lives_at(turn) == world.target.address


async def test_a_prompt_that_its_engine_does_not_hold_is_not_copied_and_blames_nobody(world: World) -> None:
    turn = await world.turn("evicted")
    world.engines[0].engine.pool.clear_cache()
    await world.copy(turn)
    assert_it_stayed(world, turn)
    assert world.mover.counts.dropped == {"export_not_cached": 1}
    others = await world.turn("another tenant's")
    await world.copy(others)
    assert world.lives_at(others) == world.target.address


async def test_a_body_too_large_to_keep_is_not_copied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "MOST_BODY_BYTES", 100)
    turn = await world.turn()
    await world.copy(turn)
    assert_it_stayed(world, turn)
    assert world.mover.counts.dropped == {"too_large": 1}


async def test_stopping_gives_up_the_copies_under_way_and_leaves_no_task(world: World) -> None:
    turn = await world.turn()
    world.engines[0].faults.set(Fault("hang", count=1, only="export"))
    world.mover.offer(turn.move, turn.facts, "/v1/chat/completions", turn.body)
    await until(lambda: world.engines[0].faults.current is None)
    await world.mover.stop()
    assert_it_stayed(world, turn)
    assert world.mover.counts.dropped == {"stopped": 1}
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("copy")]
