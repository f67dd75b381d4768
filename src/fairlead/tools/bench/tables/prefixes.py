"""Time of the prefix index: a lookup and an insert, by the prompt's blocks, the endpoints and what is held already.

Each repeat is what a request does: `match` its chain, then `insert` it at one endpoint, endpoint after endpoint.

- cold: nothing is held; the prompt is new to an index that is new.
- shared: every endpoint holds the prompt but for its last blocks, as after the turn before of a chat that all served.
- full: every endpoint holds as much as it may, in short prompts under a few shared heads. The prompt begins with such
  a head and is new after it, so that each insert evicts as many blocks as it adds. Where endpoints are few, they soon
  hold nothing but earlier prompts of the measurement, and the heads are gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, Literal

import msgspec

from fairlead.core.prefix_index import DEFAULT_BLOCKS, PrefixIndex
from fairlead.statistics import quantile
from fairlead.tools.bench.decision import address_of

State = Literal["cold", "shared", "full"]
STATES: Final[tuple[State, ...]] = ("cold", "shared", "full")
BLOCKS: Final = (512, 2048)
ENDPOINTS: Final = (8, 64, 1024)

_HEAD_BLOCKS: Final = 16
_HEADS: Final = 8
_OWN_BLOCKS: Final = 48  # of each prompt that fills an index
_LAST_BLOCKS: Final = 8  # of a shared prompt, that nobody holds
_WARM_UP: Final = 5
_LEAST_REPEATS: Final = 10
_STEP_S: Final = 1e-3

_Next = Callable[[], tuple[PrefixIndex, tuple[int, ...]]]


class PrefixCell(msgspec.Struct, frozen=True):
    """One state, pool and prompt."""

    state: State
    endpoints: int
    blocks: int
    repeats: int
    found: int  # endpoints that the last lookup found
    lookup_us: float  # medians
    lookup_p99_us: float
    insert_us: float
    insert_p99_us: float


def cells() -> list[tuple[int, State, int]]:
    """All that is measured: endpoints, state, blocks."""
    return [(n, state, blocks) for n in ENDPOINTS for state in STATES for blocks in BLOCKS]


def measure(seed: int, cell_budget_s: float, most_repeats: int) -> Iterator[PrefixCell]:
    """Measure every cell for about `cell_budget_s` each."""
    for endpoints, state, blocks in cells():
        rng, addresses = Random(f"{seed} {endpoints} {state} {blocks}"), addresses_of(endpoints)
        following = {"cold": _cold, "shared": _shared, "full": _full}[state](addresses, blocks, rng)
        yield _measured(state, blocks, addresses, following, cell_budget_s, most_repeats)


def addresses_of(endpoints: int) -> list[str]:
    return [address_of(number) for number in range(endpoints)]


def new_chain(rng: Random, blocks: int) -> tuple[int, ...]:
    """A chain like those of `core.prefix`: 64 random bits a block."""
    packed = memoryview(rng.randbytes(8 * blocks)).cast("Q")
    return tuple(packed)


def fill(
    index: PrefixIndex, addresses: list[str], blocks: int, own_blocks: int, rng: Random, now_s: float = 0.0
) -> list[tuple[int, ...]]:
    """Give every endpoint prompts of `own_blocks` each after a shared head, `blocks` without the heads; the heads."""
    heads = [new_chain(rng, _HEAD_BLOCKS) for _ in range(_HEADS)]
    for number in range(blocks // own_blocks):
        for address in addresses:
            index.insert(heads[number % _HEADS] + new_chain(rng, own_blocks), address, now_s)
    return heads


def _cold(addresses: list[str], blocks: int, rng: Random) -> _Next:
    def following() -> tuple[PrefixIndex, tuple[int, ...]]:
        index = PrefixIndex()
        for address in addresses:
            index.set_capacity(address, DEFAULT_BLOCKS)
        return index, new_chain(rng, blocks)

    return following


def _shared(addresses: list[str], blocks: int, rng: Random) -> _Next:
    index = PrefixIndex()
    known = new_chain(rng, blocks - _LAST_BLOCKS)
    for address in addresses:
        index.insert(known, address, 0.0)
    return lambda: (index, known + new_chain(rng, _LAST_BLOCKS))


def _full(addresses: list[str], blocks: int, rng: Random) -> _Next:
    index = PrefixIndex()
    heads = fill(index, addresses, DEFAULT_BLOCKS, _OWN_BLOCKS, rng)
    return lambda: (index, rng.choice(heads) + new_chain(rng, blocks - _HEAD_BLOCKS))


def _measured(
    state: State, blocks: int, addresses: list[str], following: _Next, budget_s: float, most: int
) -> PrefixCell:
    lookups_us: list[float] = []
    inserts_us: list[float] = []
    clock_ns, found = time.perf_counter_ns, 0
    until_s = time.perf_counter() + budget_s
    number = -_WARM_UP
    while number < _LEAST_REPEATS or (number < most and time.perf_counter() < until_s):
        index, chain = following()
        address, now_s = addresses[number % len(addresses)], 1.0 + (number + _WARM_UP) * _STEP_S
        started_ns = clock_ns()
        held = index.match(chain, now_s)
        matched_ns = clock_ns()
        index.insert(chain, address, now_s)
        ended_ns = clock_ns()
        if number >= 0:
            lookups_us.append((matched_ns - started_ns) / 1e3)
            inserts_us.append((ended_ns - matched_ns) / 1e3)
        found = len(held)
        number += 1
    return PrefixCell(
        state=state,
        endpoints=len(addresses),
        blocks=blocks,
        repeats=len(lookups_us),
        found=found,
        lookup_us=quantile(lookups_us, 0.5),
        lookup_p99_us=quantile(lookups_us, 0.99),
        insert_us=quantile(inserts_us, 0.5),
        insert_p99_us=quantile(inserts_us, 0.99),
    )
