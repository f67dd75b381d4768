"""KV events over real ZMQ sockets: both encodings, order, loss, replay and restart, and what the indexes then say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.engines.kv_world import ADDRESS, Encoding, KvWorld, batch, cleared, kv_world, pack, removed, stored

FIRST, SECOND, THIRD = (1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)
PROMPT = (*FIRST, *SECOND, *THIRD)
CHAIN = (101, 102, 103)  # of some prompt, in the byte index


@pytest.fixture(params=["arrays", "maps"])
def encoding(request: pytest.FixtureRequest) -> Encoding:
    kind: Encoding = request.param
    return kind


@pytest.fixture
async def world(encoding: Encoding) -> AsyncIterator[KvWorld]:
    async with kv_world(encoding) as world:
        yield world


async def test_stored_blocks_are_held_and_removed_ones_are_not(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11, 12], None, [*FIRST, *SECOND]))
    await world.publisher.send(2.0, stored(encoding, [b"13"], 12, THIRD))
    await world.taken(2)
    assert world.held(*PROMPT, 77, 78) == 12
    await world.publisher.send(3.0, removed(encoding, [b"13"]))
    await world.taken(3)
    assert world.held(*PROMPT) == 8


async def test_missing_messages_are_asked_of_the_replay_endpoint(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    await world.taken(1)
    await world.publisher.send(2.0, stored(encoding, [12], 11, SECOND), received=False)
    await world.publisher.send(3.0, stored(encoding, [13], 12, THIRD))
    await world.taken(3)
    assert world.held(*PROMPT) == 12
    assert (world.feed.counts.gaps, world.feed.counts.replayed, world.feed.counts.lost) == (1, 1, 0)


async def test_a_gap_that_no_replay_fills_forgets_what_was_held(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    await world.taken(1)
    world.index.insert(CHAIN, ADDRESS, world.now_s)
    await world.publisher.send(2.0, removed(encoding, [11]), received=False, kept=False)
    await world.publisher.send(3.0, stored(encoding, [12], None, SECOND))
    await world.taken(2)
    assert (world.held(*PROMPT), world.held(*SECOND)) == (0, 4)
    assert world.feed.counts.lost == 1
    assert world.index.match(CHAIN, world.now_s) == {ADDRESS: 3}  # the byte index is a guess with or without events


async def test_a_replay_that_does_not_reach_back_forgets_what_was_held(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    await world.taken(1)
    await world.publisher.send(2.0, removed(encoding, [11]), received=False, kept=False)
    await world.publisher.send(3.0, stored(encoding, [12], None, SECOND), received=False)
    world.publisher.history.pop(0)
    await world.publisher.send(4.0, stored(encoding, [13], 12, THIRD))
    await world.taken(3)
    assert (world.held(*PROMPT), world.held(*SECOND, *THIRD)) == (0, 8)
    assert world.feed.counts.lost == 1


async def test_without_a_replay_endpoint_a_gap_forgets_what_was_held(encoding: Encoding) -> None:
    async with kv_world(encoding, replay=False) as world:
        await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
        await world.publisher.send(2.0, removed(encoding, [11]), received=False)
        await world.publisher.send(3.0, stored(encoding, [12], 11, SECOND))
        await world.taken(2)
        assert world.held(*PROMPT) == 0
        assert (world.feed.counts.lost, world.feed.counts.unplaced) == (1, 1)


async def test_a_feed_that_comes_late_learns_the_history(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST), received=False)
    await world.publisher.send(2.0, stored(encoding, [12], 11, SECOND))
    await world.taken(2)
    assert world.held(*PROMPT) == 8
    assert (world.feed.counts.gaps, world.feed.counts.lost) == (0, 0)


async def test_a_history_that_breaks_off_is_not_believed(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST), received=False)
    await world.publisher.send(2.0, removed(encoding, [11]), received=False, kept=False)
    await world.publisher.send(3.0, stored(encoding, [12], None, SECOND))
    await world.taken(2)
    assert (world.held(*FIRST), world.held(*SECOND)) == (0, 4)


async def test_a_replayed_message_counts_once(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    await world.taken(1)
    await world.publisher.send(2.0, stored(encoding, [11], None, FIRST), received=False)
    await world.publisher.send(3.0, removed(encoding, [11]))
    await world.taken(3)
    assert world.held(*FIRST) == 4  # two copies were stored and one was removed


# ---- restarts -------------------------------------------------------------------------------------------------------


async def test_a_sequence_that_starts_again_forgets_the_engine_in_both_indexes(
    world: KvWorld, encoding: Encoding
) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    await world.publisher.send(2.0, stored(encoding, [12], 11, SECOND))
    await world.taken(2)
    world.index.insert(CHAIN, ADDRESS, world.now_s)
    world.publisher.restart()
    await world.publisher.send(3.0, stored(encoding, [13], None, THIRD))
    await world.taken(3)
    assert (world.held(*PROMPT), world.held(*THIRD)) == (0, 4)
    assert world.index.match(CHAIN, world.now_s) == {}
    assert world.feed.counts.restarts == 1


async def test_a_restart_whose_first_messages_were_lost_is_seen_by_the_replay(
    world: KvWorld, encoding: Encoding
) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    await world.taken(1)
    world.index.insert(CHAIN, ADDRESS, world.now_s)
    world.publisher.restart()
    await world.publisher.send(5.0, stored(encoding, [21], None, SECOND), received=False)
    await world.publisher.send(6.0, stored(encoding, [22], 21, THIRD), received=False)
    await world.publisher.send(7.0, stored(encoding, [23], 22, FIRST))
    await world.taken(4)
    assert (world.held(*FIRST), world.held(*SECOND, *THIRD, *FIRST)) == (0, 12)
    assert world.index.match(CHAIN, world.now_s) == {}
    assert (world.feed.counts.restarts, world.feed.counts.lost) == (1, 0)
    assert world.publisher.asked_from == [0, 0]


async def test_an_engine_known_to_have_restarted_is_learned_anew(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    await world.taken(1)
    world.publisher.restart()
    world.feed.restarted()
    assert world.held(*FIRST) == 0
    await world.publisher.send(5.0, stored(encoding, [21], None, SECOND), received=False)
    await world.publisher.send(6.0, stored(encoding, [22], 21, THIRD))
    await world.taken(3)
    assert world.held(*SECOND, *THIRD) == 8


# ---- the byte index -------------------------------------------------------------------------------------------------


async def test_a_cleared_cache_forgets_the_endpoint_in_both_indexes(world: KvWorld, encoding: Encoding) -> None:
    world.index.insert(CHAIN, ADDRESS, world.now_s)
    world.index.insert(CHAIN, "other:1", world.now_s)
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST), cleared(encoding))
    await world.taken(1)
    assert world.held(*FIRST) == 0
    assert world.index.match(CHAIN, world.now_s) == {"other:1": 3}


async def test_an_eviction_takes_what_was_used_before_the_evicted_block_was_stored(
    world: KvWorld, encoding: Encoding
) -> None:
    old, recent = (301, 302), (401, 402)
    world.index.insert(old, ADDRESS, 900.0)
    world.index.insert(recent, ADDRESS, 960.0)
    await world.publisher.send(50.0, stored(encoding, [11], None, FIRST))
    world.now_s = 1000.0
    await world.publisher.send(90.0, removed(encoding, [11]))  # stored 40 s ago: at 960, less 5 s of slack
    await world.taken(2)
    assert world.index.match(old, world.now_s) == {}
    assert world.index.match(recent, world.now_s) == {ADDRESS: 2}


async def test_an_eviction_by_a_clock_that_was_set_back_tells_nothing(world: KvWorld, encoding: Encoding) -> None:
    """All that was stored before would seem to be newer than its own eviction."""
    world.index.insert(CHAIN, ADDRESS, 900.0)
    await world.publisher.send(4000.0, stored(encoding, [11], None, FIRST))
    world.now_s = 1000.0
    await world.publisher.send(440.0, removed(encoding, [11]))
    await world.taken(2)
    assert world.index.match(CHAIN, world.now_s) == {ADDRESS: 3}


async def test_a_replayed_eviction_does_not_tell_how_far_eviction_is_now(world: KvWorld, encoding: Encoding) -> None:
    world.index.insert(CHAIN, ADDRESS, 900.0)
    await world.publisher.send(50.0, stored(encoding, [11], None, FIRST), received=False)
    await world.publisher.send(51.0, removed(encoding, [11]), received=False)
    await world.publisher.send(52.0, stored(encoding, [12], None, SECOND))
    await world.taken(3)
    assert world.index.match(CHAIN, world.now_s) == {ADDRESS: 3}


# ---- garbage --------------------------------------------------------------------------------------------------------


async def test_messages_that_are_no_kv_events_are_counted_and_skipped(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    for frames in ([b""], [b"a", b"b"], [b"t", b"\x00", b"p"], [b"t", b"\xff" * 8, b""], [b"a", b"b", b"c", b"d"]):
        await world.publisher.send_frames(*frames)
    await world.publisher.send(2.0, stored(encoding, [12], 11, SECOND))
    await world.taken(2)
    assert (world.held(*PROMPT), world.feed.counts.garbage) == (8, 5)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x93", pack("text"), pack([1.0, [["BlockRemoved"]], 0]), pack([1.0, [[]]]), b"\x92\x01" * 9999],
)
async def test_a_batch_that_may_hide_a_removal_forgets_what_was_held(world: KvWorld, payload: bytes) -> None:
    await world.publisher.send(1.0, stored("arrays", [11], None, FIRST))
    await world.publisher.send_raw(payload)
    await world.publisher.send(2.0, stored("maps", [12], None, SECOND))
    await world.taken(3)
    assert (world.held(*FIRST), world.held(*SECOND)) == (0, 4)
    assert (world.feed.counts.unreadable, world.feed.counts.faults) == (1, 0)


async def test_events_of_unknown_kinds_and_unreadable_stores_are_skipped(world: KvWorld, encoding: Encoding) -> None:
    odd = ({"type": "BlockMoved", "x": 1}, ["BlockPinned", 3], stored(encoding, [12], 11, [-1, 2, 3, 2**40]))
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST), *odd)
    await world.taken(1)
    assert (world.held(*FIRST), world.feed.counts.skipped_events) == (4, 3)


async def test_a_replay_that_answers_nonsense_is_a_replay_that_cannot_serve(world: KvWorld, encoding: Encoding) -> None:
    await world.publisher.send(1.0, stored(encoding, [11], None, FIRST))
    await world.taken(1)
    world.publisher.history = [(0, world.publisher.history[0][1]), (0, b"again"), (1, b"late")]
    world.publisher.next += 1
    await world.publisher.send(3.0, stored(encoding, [12], None, SECOND), kept=False)
    await world.taken(2)
    assert (world.held(*FIRST), world.held(*SECOND), world.feed.counts.lost) == (0, 4, 1)


async def test_more_blocks_than_allowed_are_forgotten(encoding: Encoding) -> None:
    async with kv_world(encoding, max_blocks=3) as world:
        await world.publisher.send(1.0, stored(encoding, [1, 2, 3], None, PROMPT))
        await world.publisher.send(2.0, stored(encoding, [4], None, SECOND))
        await world.taken(2)
        assert (world.held(*PROMPT), world.feed.counts.overflows) == (0, 1)


async def test_requests_pass_while_a_flood_of_events_is_taken_in(world: KvWorld, encoding: Encoding) -> None:
    payload = batch(encoding, 1.0, stored(encoding, [11], None, FIRST))
    for _ in range(500):
        await world.publisher.send_raw(payload)
    turns = 0
    while world.feed.counts.batches < 500:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 400
