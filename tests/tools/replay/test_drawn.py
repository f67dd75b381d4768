"""Pools and traffic that are drawn at random are ones that could be."""

from __future__ import annotations

import pytest

from benchmarks.papers._drawn import LOADS, LONGEST, REQUESTS, Drawn, drawn

NUMBERS = range(500, 530)


@pytest.fixture(scope="module")
def cases() -> list[Drawn]:
    return [drawn(number) for number in NUMBERS]


def test_the_same_number_draws_the_same_case() -> None:
    assert drawn(500) == drawn(500) != drawn(501)


def test_every_case_has_as_many_requests_at_a_load_that_can_be_served(cases: list[Drawn]) -> None:
    assert {case.traffic.requests for case in cases} == {REQUESTS}
    assert all(LOADS[0] <= case.load <= LOADS[1] for case in cases)


def test_conversations_start_in_order(cases: list[Drawn]) -> None:
    for case in cases:
        starts_ms = [each.start_ms for each in case.traffic.conversations]
        assert starts_ms == sorted(starts_ms)


def test_prompts_fit_every_engine_of_their_pool(cases: list[Drawn]) -> None:
    for case in cases:
        longest = max(turn.prompt_tokens for each in case.traffic.conversations for turn in each.turns)
        assert longest <= LONGEST + case.traffic.block_tokens
        assert longest < min(endpoint.kv_tokens for endpoint in case.world.endpoints)


def test_a_block_stands_once_in_a_prompt_and_after_the_same_blocks_in_all(cases: list[Drawn]) -> None:
    for case in cases:
        before: dict[int, int] = {}
        for each in case.traffic.conversations:
            for turn in each.turns:
                blocks = turn.blocks()
                assert len(set(blocks)) == len(blocks) == turn.prompt_tokens // case.traffic.block_tokens
                assert all(
                    before.setdefault(block, last) == last for last, block in zip((0, *blocks), blocks, strict=False)
                )


def test_some_pools_are_as_the_cost_believes_and_some_are_not(cases: list[Drawn]) -> None:
    worlds = [case.world_name for case in cases]
    assert 0.3 < worlds.count("plain") / len(worlds) < 0.7
    assert len(set(worlds)) > 5
