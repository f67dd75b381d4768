"""What an engine holds, from its events: copies are counted, prefixes are contiguous, only plain prompts match."""

from __future__ import annotations

import gc
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from fairlead.engines.kv_blocks import Applied, PreciseIndex
from fairlead.engines.kv_event_messages import AllBlocksCleared, Batch, BlockHash, BlockRemoved, BlockStored, Event

A = "a:1"
ONE, TWO, THREE = [1, 2], [3, 4], [5, 6]


def apply(index: PreciseIndex, *events: Event, engine_s: float = 0.0, address: str = A) -> Applied:
    return index.apply(address, Batch(engine_s, events, 0))


def store(hashes: list[BlockHash], parent: BlockHash | None, tokens: list[int], **more: object) -> BlockStored:
    return BlockStored(hashes, parent, tokens, 2, **more)  # type: ignore[arg-type]


def test_a_prompt_is_held_as_far_as_its_blocks_follow_each_other() -> None:
    index = PreciseIndex()
    apply(index, store([7, 8, 9], None, [*ONE, *TWO, *THREE]))
    apply(index, BlockRemoved([8]))
    assert index.match([*ONE, *TWO, *THREE], A) == 2


def test_a_block_is_held_until_its_last_copy_is_removed() -> None:
    index = PreciseIndex()
    apply(index, store([7], None, ONE), store([7], None, ONE))
    apply(index, BlockRemoved([7]))
    assert index.match(ONE, A) == 2
    apply(index, BlockRemoved([7]))
    assert index.match(ONE, A) == 0
    assert index.blocks() == {A: 0}


def test_hashes_of_different_engines_do_not_mix() -> None:
    index = PreciseIndex()
    apply(index, store([7], None, ONE), address="a:1")
    apply(index, store([7], None, TWO), address="b:1")
    assert [index.match(ONE, address) for address in ("a:1", "b:1", "c:1")] == [2, 0, 0]


def test_blocks_after_an_unknown_one_are_not_placed() -> None:
    index = PreciseIndex()
    assert apply(index, store([8, 9], 7, [*ONE, *TWO])).unplaced == 2
    assert index.match([*ONE, *TWO], A) == 0


def test_blocks_of_an_adapter_or_with_an_image_match_no_plain_prompt() -> None:
    index = PreciseIndex()
    apply(index, store([7], None, ONE, lora_name="sql"), store([8], None, TWO, extra_keys=[["image"]]))
    apply(index, store([9], 8, THREE))
    assert [index.match(ONE, A), index.match(TWO, A), index.match([*TWO, *THREE], A)] == [0, 0, 0]
    apply(index, store([17], None, ONE, extra_keys=[None]))
    assert index.match(ONE, A) == 2


def test_only_blocks_of_full_attention_count_and_groups_do_not_mix() -> None:
    index = PreciseIndex()
    apply(index, store([7], None, ONE, group_idx=0, kv_cache_spec_kind="full_attention"))
    apply(index, store([7], None, ONE, group_idx=1, kv_cache_spec_kind="sliding_window"))
    apply(index, BlockRemoved([7], group_idx=1))
    assert index.match(ONE, A) == 2
    apply(index, BlockRemoved([7], group_idx=0))
    assert index.match(ONE, A) == 0


def test_a_partial_block_is_not_placed() -> None:
    index = PreciseIndex()
    assert apply(index, store([7, 8], None, [1, 2, 3])).unplaced == 2


def test_the_age_of_a_removal_is_that_of_the_youngest_block_by_its_first_copy() -> None:
    index = PreciseIndex()
    apply(index, store([7], None, ONE), engine_s=100)
    apply(index, store([7], None, ONE), store([8], None, TWO), engine_s=130)
    assert apply(index, BlockRemoved([7]), engine_s=150).removed_age_s == 50
    assert apply(index, BlockRemoved([7, 8]), engine_s=150).removed_age_s == 20
    assert apply(index, BlockRemoved([99]), engine_s=150).removed_age_s is None


def test_a_cleared_cache_holds_nothing() -> None:
    index = PreciseIndex()
    apply(index, store([7], None, ONE))
    assert apply(index, AllBlocksCleared()).cleared
    assert index.match(ONE, A) == 0


TOKENS = st.lists(st.sampled_from([1, 2]), min_size=2, max_size=10)


@given(st.lists(st.tuples(st.booleans(), TOKENS), max_size=30), TOKENS)
def test_it_says_what_an_engine_that_tells_all_holds(requests: list[tuple[bool, list[int]]], asked: list[int]) -> None:
    """The engine stores copies of prompts' blocks, and removes one copy of a prompt's last block."""
    index = PreciseIndex()
    copies: dict[tuple[int, ...], int] = {}
    for serves, tokens in requests:
        prefixes = [tuple(tokens[:end]) for end in range(2, len(tokens) + 1, 2)]
        if serves:
            events = [
                store([repr(p).encode()], repr(p[:-2]).encode() if p[:-2] else None, list(p[-2:])) for p in prefixes
            ]
            apply(index, *events)
            for prefix in prefixes:
                copies[prefix] = copies.get(prefix, 0) + 1
        elif copies.get(prefixes[-1]):
            apply(index, BlockRemoved([repr(prefixes[-1]).encode()]))
            copies[prefixes[-1]] -= 1
    held = 0
    while held + 2 <= len(asked) and copies.get(tuple(asked[: held + 2])):
        held += 2
    assert index.match(asked, A) == held


def test_a_block_with_a_cache_salt_matches_no_plain_prompt() -> None:
    index = PreciseIndex()
    apply(index, store([7], None, ONE, cache_salt="tenant"), store([8], 7, TWO, cache_salt="tenant"))
    assert index.match([*ONE, *TWO], A) == 0


def test_a_copy_in_a_slower_tier_is_not_held() -> None:
    index = PreciseIndex()
    apply(index, store([7], None, ONE, medium="GPU"), store([7], None, ONE, medium="CPU_PINNED"))
    apply(index, store([8], None, TWO, medium="DISK"))
    assert apply(index, BlockRemoved([7], medium="CPU_PINNED"), engine_s=9.0).removed_age_s is None
    assert [index.match(ONE, A), index.match(TWO, A)] == [2, 0]
    apply(index, store([7], None, ONE, medium="CPU_PINNED"), BlockRemoved([7], medium="GPU"))
    assert index.match(ONE, A) == 0


def test_a_removed_block_shows_its_age_where_its_prompt_is_unknown() -> None:
    index = PreciseIndex()
    assert apply(index, store([8, 9], 7, [*ONE, *TWO]), engine_s=10).unplaced == 2
    assert apply(index, BlockRemoved([9]), engine_s=50).removed_age_s == 40
    assert index.match([*ONE, *TWO], A) == 0


def tokens_stored(hashes: range, parent: int | None) -> BlockStored:
    """Blocks of one token each; a token is the block's hash."""
    return BlockStored(list(hashes), parent, list(hashes), 1)


def test_pages_of_one_token_are_held_in_steps_and_do_not_overflow() -> None:
    index = PreciseIndex(max_blocks=100)
    assert not apply(index, tokens_stored(range(1, 1001), None), tokens_stored(range(1001, 1006), 1000)).overflowed
    assert index.blocks()[A] == 1000 // 16 + 2  # and the last of each event
    assert index.match(range(1, 1100), A) == 1005
    assert index.match([*range(1, 500), 7, 7], A) == 499 // 16 * 16
    apply(index, BlockRemoved(list(range(600, 1006))))
    assert index.match(range(1, 1006), A) == 599 // 16 * 16
    assert apply(index, tokens_stored(range(2000, 2020), 17)).unplaced == 20  # 17 was not kept


def test_a_token_in_a_page_of_one_costs_tens_of_bytes_and_not_hundreds() -> None:
    """As many tokens as fill the index of an engine whose pages have 16; an event has a prompt's thousand."""
    prompts = [tokens_stored(range(n * 1000, (n + 1) * 1000), None) for n in range(1, 101)]
    gc.collect()
    tracemalloc.start()
    try:
        index = PreciseIndex()
        apply(index, *prompts)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.blocks()[A] >= 100_000 // 16
    assert held_bytes / 100_000 < 40
