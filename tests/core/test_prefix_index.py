"""The prefix index reports what was inserted, as far as it is contiguous, fresh and within capacity."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal, overload

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.prefix import BLOCK_BYTES, chain
from fairlead.core.prefix_index import PrefixIndex

TTL_S = 100.0
MIB = 1024 * 1024


def prompt(letters: str) -> tuple[int, ...]:
    """The chain of a prompt with one block for each letter."""
    return chain(b"".join(letter.encode() * BLOCK_BYTES for letter in letters))


def blocks_of_nobody() -> Iterator[int]:
    """Hashes that are all different and spread over 64 bits."""
    return (n * 0x9E3779B97F4A7C15 % 2**64 for n in count(1))


# ---- what is held ---------------------------------------------------------------------------------------------------


def test_an_endpoint_holds_the_prompts_it_got() -> None:
    index = PrefixIndex()
    index.insert(prompt("abc"), "a:1", 0)
    assert index.match(prompt("abc"), 1) == {"a:1": 3}
    assert index.blocks("a:1") == 3


def test_a_longer_prompt_is_held_up_to_where_it_goes_on_otherwise() -> None:
    index = PrefixIndex()
    index.insert(prompt("abc"), "a:1", 0)
    assert index.match(prompt("abcd"), 1) == {"a:1": 3}
    assert index.match(prompt("abx"), 1) == {"a:1": 2}
    assert index.match(prompt("ab"), 1) == {"a:1": 2}


def test_a_prompt_that_failed_there_leaves_what_was_held_before_it() -> None:
    index = PrefixIndex()
    index.insert(prompt("ab"), "a:1", 0)
    index.insert(prompt("abcd"), "a:1", 1)
    index.roll_back(prompt("abcd"), "a:1", held_blocks=2, inserted_s=1)
    assert index.match(prompt("abcd"), 2) == {"a:1": 2}
    assert index.blocks("a:1") == 2


def test_what_another_prompt_used_since_a_failure_is_held() -> None:
    index = PrefixIndex()
    index.insert(prompt("abc"), "a:1", 0)
    index.insert(prompt("abc"), "a:1", 1)
    index.roll_back(prompt("abc"), "a:1", held_blocks=0, inserted_s=0)
    assert index.match(prompt("abc"), 2) == {"a:1": 3}


def test_endpoints_without_the_first_block_are_absent() -> None:
    index = PrefixIndex()
    index.insert(prompt("xbc"), "a:1", 0)
    index.insert(prompt("abc"), "b:1", 0)
    assert index.match(prompt("abc"), 1) == {"b:1": 3}


def test_an_empty_chain_is_held_by_nobody_and_inserts_nothing() -> None:
    index = PrefixIndex()
    index.insert((), "a:1", 0)
    assert index.match((), 1) == {}
    assert index.blocks("a:1") == 0


def test_conversations_share_a_system_prompt_and_each_endpoint_holds_its_own() -> None:
    index = PrefixIndex()
    index.insert(prompt("sysone"), "a:1", 0)
    index.insert(prompt("systwo"), "b:1", 0)
    index.insert(prompt("sysonemore"), "c:1", 0)
    assert index.match(prompt("sysonemore"), 1) == {"a:1": 6, "b:1": 3, "c:1": 10}
    assert index.match(prompt("systwo"), 1) == {"a:1": 3, "b:1": 6, "c:1": 3}


def test_prompts_that_end_up_with_the_same_hash_at_another_depth_raise_nothing() -> None:
    index = PrefixIndex()
    index.insert((1, 2, 3), "a:1", 0)
    index.insert((4, 2, 1, 3), "a:1", 0)
    index.insert((2, 3, 1), "b:1", 0)
    index.insert((1,), "a:1", 0)
    index.insert((1, 3, 2, 2, 1), "a:1", 0)
    assert index.match((1, 2, 3), 1)["a:1"] >= 1


# ---- capacity in tokens ---------------------------------------------------------------------------------------------


def test_of_denser_text_fewer_blocks_fit() -> None:
    index = PrefixIndex()
    index.set_capacity_tokens("a:1", 1280)
    index.insert(prompt("abcdefghijklmno"), "a:1", 0, block_tokens=128)
    assert index.blocks("a:1") == 10
    index.forget("a:1")
    index.insert(prompt("ABCDEFGHIJKLMNO"), "b:1", 0, block_tokens=320)
    index.set_capacity_tokens("b:1", 1280)
    assert index.blocks("b:1") == 4


@given(
    st.lists(st.tuples(st.text("abcdef", min_size=1, max_size=12), st.floats(1, 600)), max_size=20),
    st.integers(0, 5000),
)
def test_no_more_tokens_are_held_than_fit(prompts: list[tuple[str, float]], capacity_tokens: int) -> None:
    index = PrefixIndex()
    index.set_capacity_tokens("a:1", capacity_tokens)
    for now_s, (letters, block_tokens) in enumerate(prompts):
        index.insert(prompt(letters), "a:1", now_s, block_tokens)
        assert index.tokens("a:1") <= capacity_tokens


@given(st.lists(st.text("abc", min_size=1, max_size=8), min_size=1, max_size=20), st.integers(0, 20))
def test_what_was_used_before_an_eviction_is_not_held(prompts: list[str], evicted_s: int) -> None:
    """As an engine evicts: what it denies to have took with it all that was used before."""
    index = PrefixIndex()
    for now_s, letters in enumerate(prompts):
        index.insert(prompt(letters), "a:1", now_s)
    index.evicted_before("a:1", evicted_s)
    for letters in prompts:
        used = [letters[:n] for n in range(1, len(letters) + 1)
                if any(other.startswith(letters[:n]) for other in prompts[evicted_s:])]  # fmt: skip
        assert index.match(prompt(letters), len(prompts)).get("a:1", 0) == len(used)


@given(st.lists(st.text("abc", min_size=1, max_size=8), max_size=20), st.text("abc", min_size=1, max_size=8))
def test_an_insert_returns_what_was_held_before_it(prompts: list[str], letters: str) -> None:
    index = PrefixIndex()
    for now_s, earlier in enumerate(prompts):
        index.insert(prompt(earlier), "a:1", now_s)
    held = index.match(prompt(letters), len(prompts)).get("a:1", 0)
    before = index.insert(prompt(letters), "a:1", len(prompts))
    assert max((part.end for part in before), default=0) == held
    assert [part.end for part in before] == sorted({part.end for part in before})


# ---- what goes ------------------------------------------------------------------------------------------------------


def test_what_nobody_used_for_the_time_to_live_is_not_reported() -> None:
    index = PrefixIndex(ttl_s=TTL_S)
    index.insert(prompt("abc"), "a:1", 0)
    assert index.match(prompt("abc"), TTL_S - 1) == {"a:1": 3}
    assert index.match(prompt("abc"), TTL_S) == {}


def test_the_rest_of_a_prompt_expires_although_its_head_is_used() -> None:
    index = PrefixIndex(ttl_s=TTL_S)
    index.insert(prompt("abcdef"), "a:1", 0)
    index.insert(prompt("abx"), "a:1", TTL_S - 1)
    assert index.match(prompt("abcdef"), TTL_S) == {"a:1": 2}


def test_a_full_endpoint_loses_its_least_recently_used_prompt_from_the_tail() -> None:
    index = PrefixIndex(default_blocks=6)
    index.insert(prompt("abc"), "a:1", 0)
    index.insert(prompt("xyz"), "a:1", 1)
    index.insert(prompt("xyzmn"), "a:1", 2)
    assert index.match(prompt("abc"), 3) == {"a:1": 1}
    assert index.match(prompt("xyzmn"), 3) == {"a:1": 5}
    assert index.blocks("a:1") == 6


def test_a_prompt_longer_than_the_cache_is_held_by_its_head() -> None:
    index = PrefixIndex(default_blocks=2)
    index.insert(prompt("abcd"), "a:1", 0)
    assert index.match(prompt("abcd"), 1) == {"a:1": 2}


def test_capacity_is_each_endpoints_own() -> None:
    index = PrefixIndex(default_blocks=2)
    index.set_capacity("b:1", 3)
    index.insert(prompt("abcd"), "a:1", 0)
    index.insert(prompt("abcd"), "b:1", 0)
    assert index.match(prompt("abcd"), 1) == {"a:1": 2, "b:1": 3}
    index.set_capacity("b:1", 1)
    assert index.match(prompt("abcd"), 1) == {"a:1": 2, "b:1": 1}


def test_a_restarted_endpoint_holds_nothing_and_keeps_its_capacity() -> None:
    index = PrefixIndex()
    index.set_capacity("a:1", 2)
    index.insert(prompt("abc"), "a:1", 0)
    index.insert(prompt("abc"), "b:1", 0)
    index.forget("a:1")
    assert index.match(prompt("abc"), 1) == {"b:1": 3}
    assert index.blocks("a:1") == 0
    index.insert(prompt("abc"), "a:1", 2)
    assert index.match(prompt("abc"), 3) == {"a:1": 2, "b:1": 3}


def test_what_was_last_used_before_the_engines_newest_eviction_is_gone() -> None:
    index = PrefixIndex()
    index.insert(prompt("abcdef"), "a:1", 10)
    index.insert(prompt("abx"), "a:1", 20)
    index.insert(prompt("abcdef"), "b:1", 10)
    index.evicted_before("a:1", 15)
    assert index.match(prompt("abcdef"), 30) == {"a:1": 2, "b:1": 6}
    assert index.match(prompt("abx"), 30) == {"a:1": 3, "b:1": 2}
    index.insert(prompt("abcd"), "a:1", 30)
    assert index.match(prompt("abcdef"), 30) == {"a:1": 4, "b:1": 6}


LETTERS = st.text("ab", max_size=9)
ADDRESSES = ("a:1", "b:1", "c:1")


@dataclass(frozen=True)
class Step:
    """Something that happens; each kind of it uses the fields it needs."""

    kind: Literal["insert", "fail", "forget", "remove", "evicted", "capacity", "wait"]
    address: str
    letters: str
    blocks: int
    seconds: float


STEP = st.builds(
    Step,
    kind=st.sampled_from(["insert", "insert", "insert", "fail", "forget", "remove", "evicted", "capacity", "wait"]),
    address=st.sampled_from(ADDRESSES),
    letters=LETTERS,
    blocks=st.integers(0, 14),
    seconds=st.sampled_from([1, 30, 60, 100]),
)


class Plain:
    """What the index should say, block by block: for each endpoint a dict from prefix to time, in order of use."""

    def __init__(self) -> None:
        self.used_s: dict[str, dict[str, float]] = {address: {} for address in ADDRESSES}
        self.capacity = dict.fromkeys(ADDRESSES, 12)

    def insert(self, letters: str, address: str, now_s: float) -> None:
        used_s = self.used_s[address]
        for end in range(len(letters), 0, -1):
            used_s.pop(letters[:end], None)
            used_s[letters[:end]] = now_s
        self.evict(address)

    def never_came(self, letters: str, address: str, held: int) -> None:
        for end in range(held + 1, len(letters) + 1):
            self.used_s[address].pop(letters[:end], None)

    def evict(self, address: str) -> None:
        used_s = self.used_s[address]
        while len(used_s) > self.capacity[address]:
            del used_s[next(iter(used_s))]

    def evicted_before(self, address: str, used_s: float) -> None:
        kept = {prefix: at_s for prefix, at_s in self.used_s[address].items() if at_s >= used_s}
        self.used_s[address] = kept

    def match(self, letters: str, now_s: float) -> dict[str, int]:
        held = dict.fromkeys(ADDRESSES, 0)
        for address, used_s in self.used_s.items():
            for end in range(1, len(letters) + 1):
                if now_s - used_s.get(letters[:end], -TTL_S) >= TTL_S:
                    break
                held[address] = end
        return {address: blocks for address, blocks in held.items() if blocks}


@given(st.lists(STEP, max_size=40), st.lists(LETTERS, min_size=4, max_size=4), st.sampled_from([MIB, 20_000]))
def test_it_says_what_plain_dicts_say_and_less_only_when_memory_is_short(
    steps: list[Step], asked: list[str], max_bytes: int
) -> None:
    index, plain, now_s = PrefixIndex(default_blocks=12, ttl_s=TTL_S, max_bytes=max_bytes), Plain(), 0.0
    for step in steps:
        if step.kind == "insert":
            index.insert(prompt(step.letters), step.address, now_s)
            plain.insert(step.letters, step.address, now_s)
            asked = [*asked, step.letters]
        elif step.kind == "fail":
            held = index.match(prompt(step.letters), now_s).get(step.address, 0)
            index.insert(prompt(step.letters), step.address, now_s)
            index.roll_back(prompt(step.letters), step.address, held, now_s)
            plain.insert(step.letters, step.address, now_s)
            plain.never_came(step.letters, step.address, held)
        elif step.kind == "forget":
            index.forget(step.address)
            plain.used_s[step.address].clear()
        elif step.kind == "remove":
            index.remove(step.address)
            plain.used_s[step.address].clear()
            plain.capacity[step.address] = 12
        elif step.kind == "evicted":
            index.evicted_before(step.address, now_s - step.seconds)
            plain.evicted_before(step.address, now_s - step.seconds)
        elif step.kind == "capacity":
            index.set_capacity(step.address, step.blocks)
            plain.capacity[step.address] = step.blocks
            plain.evict(step.address)
        else:
            now_s += step.seconds
        for letters in asked[-6:]:
            said, right = dict(index.match(prompt(letters), now_s)), plain.match(letters, now_s)
            if max_bytes == MIB:
                assert said == right
            else:
                assert all(blocks <= right.get(address, 0) for address, blocks in said.items())
        assert all(index.blocks(address) <= plain.capacity[address] for address in ADDRESSES)


# ---- what it costs --------------------------------------------------------------------------------------------------


class Counted(Sequence[int]):
    """A chain that counts how many of its blocks were looked at."""

    def __init__(self, blocks: tuple[int, ...]) -> None:
        self.blocks = blocks
        self.looks = 0

    def __len__(self) -> int:
        return len(self.blocks)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        self.looks += 1
        return self.blocks[at]


def test_a_lookup_does_not_walk_over_the_blocks_of_a_long_prompt() -> None:
    known = tuple(islice(blocks_of_nobody(), 2048))
    index = PrefixIndex()
    for turn in range(1, 65):
        index.insert(known[: turn * 32], "a:1", turn)
    same, left_midway = Counted(known), Counted((*known[:1111], *range(937)))
    assert index.match(same, 70) == {"a:1": 2048}
    assert index.match(left_midway, 70) == {"a:1": 1111}
    assert same.looks + left_midway.looks < 24


def test_memory_stays_within_its_budget_whatever_the_shape_of_the_prompts() -> None:
    fresh, now_s, max_bytes = blocks_of_nobody(), count(), MIB // 2
    addresses = [f"10.0.0.{n}:8000" for n in range(64)]
    shared = tuple(islice(fresh, 400))
    real_bytes = {}
    gc.collect()  # also empties the interpreter's free lists, which are no memory of the index
    tracemalloc.start()
    try:
        index = PrefixIndex(max_bytes=max_bytes, default_blocks=10**9, ttl_s=1e9)
        for shape, prompts, own, common in (
            ("of one block", 2_500, 1, 0),
            ("sessions", 1_000, 50, 0),
            ("long", 75, 2000, 0),
            ("branches of one", 1_250, 2, 60),
            ("prefixes of one", 250, 0, 400),
            ("of one block again", 1_250, 1, 0),
        ):
            for n in range(prompts):
                blocks = (*shared[: n % (common + 1)], *islice(fresh, own))
                index.insert(blocks, addresses[n * n % 64], next(now_s))
                if n % 625 == 0:
                    index.forget(addresses[n % 64])
                assert index.used_bytes <= max_bytes
            del blocks
            gc.collect()
            real_bytes[shape] = tracemalloc.get_traced_memory()[0]
        assert max(real_bytes.values()) <= max_bytes
        assert real_bytes["of one block again"] > max_bytes / 2  # the budget is used, not only kept
        del index
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < max_bytes / 100
    finally:
        tracemalloc.stop()


def test_what_was_forgotten_is_given_back_while_others_are_inserted() -> None:
    fresh = blocks_of_nobody()
    index = PrefixIndex()
    empty_bytes = index.used_bytes
    for _ in range(800):
        index.insert(tuple(islice(fresh, 64)), "a:1", 0)
    full_bytes = index.used_bytes
    index.forget("a:1")
    for _ in range(101):
        index.insert((1, 2, 3), "b:1", 1)
    assert index.used_bytes - empty_bytes < (full_bytes - empty_bytes) / 10


def test_engines_that_have_left_cost_nothing_once_what_they_held_is_given_back() -> None:
    index, used = PrefixIndex(), []
    for wave in ("b", "c"):  # the first one makes tables grow, which do not shrink
        for number in range(100):
            index.insert((10 * number, 4, 5), f"{wave}:{number}", 1)
            index.remove(f"{wave}:{number}")
        for _ in range(101):
            index.insert((1, 2, 3), "a:1", 2)
        used.append(index.used_bytes)
    assert used[0] == used[1]


def test_the_garbage_collector_sees_nothing_of_what_is_kept() -> None:
    fresh = blocks_of_nobody()
    index = PrefixIndex()
    gc.collect()
    before = len(gc.get_objects())
    for n in range(2000):
        index.insert((1, 2, *islice(fresh, 4)), f"a:{n % 4}", n)
    gc.collect()
    assert len(gc.get_objects()) - before < 100
