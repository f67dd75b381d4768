"""The times of the prefix index: what is held in each state, and that all states are measured."""

from __future__ import annotations

from random import Random

import pytest

from fairlead.core.prefix_index import PrefixIndex
from fairlead.tools.bench.tables.prefixes import (
    BLOCKS,
    ENDPOINTS,
    STATES,
    PrefixCell,
    addresses_of,
    fill,
    measure,
    new_chain,
)


@pytest.fixture(scope="module")
def cells() -> list[PrefixCell]:
    return list(measure(seed=0, cell_budget_s=0.0, most_repeats=10))


def test_every_state_pool_and_prompt_is_measured(cells: list[PrefixCell]) -> None:
    assert {(c.endpoints, c.state, c.blocks) for c in cells} == {
        (n, state, blocks) for n in ENDPOINTS for state in STATES for blocks in BLOCKS
    }
    assert all(0 < c.lookup_us <= c.lookup_p99_us and 0 < c.insert_us <= c.insert_p99_us for c in cells)
    assert {c.repeats for c in cells} == {10}


def test_a_cold_index_finds_nobody_and_a_shared_prompt_is_found_everywhere(cells: list[PrefixCell]) -> None:
    assert {c.found for c in cells if c.state == "cold"} == {0}
    assert all(c.found == c.endpoints for c in cells if c.state == "shared")


def test_in_a_full_index_the_head_is_found_where_there_are_many_endpoints(cells: list[PrefixCell]) -> None:
    assert {c.found for c in cells if (c.state, c.endpoints) == ("full", 1024)} == {1024}


def test_a_filled_index_gives_every_endpoint_the_heads_and_as_many_blocks_of_its_own() -> None:
    index, addresses = PrefixIndex(), addresses_of(3)

    heads = fill(index, addresses, 960, 48, Random(0))

    assert [index.blocks(address) for address in addresses] == [960 + sum(map(len, heads))] * 3
    assert index.match(heads[0], 0.0) == dict.fromkeys(addresses, len(heads[0]))


def test_chains_are_of_64_bit_hashes_and_differ() -> None:
    chain = new_chain(Random(0), 1000)

    assert len(set(chain)) == 1000
    assert 2**63 < max(chain) < 2**64
