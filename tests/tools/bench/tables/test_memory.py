"""Weights of the tables, taken in processes of their own."""

from __future__ import annotations

import pytest

from fairlead.tools.bench.tables.memory import PROMPT_BLOCKS, kinds, measure

COUNT = 200_000


def test_blocks_are_weighed_in_prompts_of_every_length_and_sessions_once() -> None:
    weighed = kinds(COUNT)

    assert [int(kind[1]) for kind in weighed[:-1]] == list(PROMPT_BLOCKS)
    assert weighed[-1] == ("sessions", str(COUNT))


@pytest.mark.parametrize(("prompt_blocks", "count"), [(8, COUNT), (512, 10 * COUNT)])  # of long ones few weigh little
async def test_blocks_weigh_about_what_the_index_counts(prompt_blocks: int, count: int) -> None:
    weight = await measure(("blocks", str(prompt_blocks), str(count)))

    assert weight.count == count // prompt_blocks * prompt_blocks
    assert weight.counted_bytes is not None
    assert 0.5 < weight.counted_bytes / weight.resident_bytes < 2


async def test_short_prompts_weigh_more_a_block_than_long_ones() -> None:
    short, long = [await measure(("blocks", blocks, str(COUNT))) for blocks in ("8", "512")]

    assert short.mib_per_million() > 2 * long.mib_per_million()


async def test_sessions_weigh_more_than_their_keys_and_nearly_all_are_held() -> None:
    weight = await measure(("sessions", str(COUNT)))

    assert 0.95 * COUNT < weight.count <= COUNT
    assert 100 < weight.resident_bytes / weight.count < 1000
    assert weight.collection_ms > 0
