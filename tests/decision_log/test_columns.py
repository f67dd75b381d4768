"""Rows: what is in them, and what must never be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.moves import Move, Stay
from fairlead.core.policy import Outcome
from fairlead.decision_log import columns
from fairlead.decision_log.columns import COLUMNS, Anonymous
from tests.decision_log.world import MODELS, Pool


def row(anonymous: Anonymous, pool: Pool, *, request_id: bytes = b"id-1", **facts: Any) -> dict[str, Any]:
    values = anonymous.row(pool.ended(request_id=request_id, **facts), 1000.0, MODELS)
    assert len(values) == len(COLUMNS)
    return dict(zip(COLUMNS, values, strict=True))


def test_a_row_tells_the_decision_and_its_end() -> None:
    outcome = Outcome(200, 2500.0, 300.0, prompt_tokens=990, cached_tokens=512, completion_tokens=40)
    found = row(Anonymous(), Pool(), model="large", tokens=1000, outcome=outcome)
    expected = {
        "at_s": 997.5, "asked": "large", "model": "large", "endpoint": "10.0.0.1:1", "decision": "cost", "code": 200,
        "estimated_tokens": 1000, "prompt_tokens": 990, "cached_tokens": 512, "output_tokens": 40, "bucket": "4K",
        "total_ms": 2500.0, "first_token_ms": 300.0, "success_probability": 1.0, "considered": 1,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_what_was_not_observed_is_null_and_the_prompt_has_its_estimate() -> None:
    found = row(Anonymous(), Pool(), tokens=1000)
    assert found["prompt_tokens"] == 1000
    assert [found[name] for name in ("first_token_ms", "cached_tokens", "output_tokens", "session")] == [None] * 4


def test_why_a_session_moves_or_stays_is_reported() -> None:
    ended = Pool().ended()
    for migration, expected in (
        (Move(b"s", "a:1", "b:1", "copy", 900, 0, "a:1"), "copy to b:1"),
        (Stay("cooling"), "stays: cooling"),
        (None, None),
    ):
        decision = msgspec.structs.replace(ended.decision, migration=migration)
        values = Anonymous().row(msgspec.structs.replace(ended, decision=decision), 1000.0, MODELS)
        assert dict(zip(COLUMNS, values, strict=True))["migration"] == expected


def test_ids_become_digests_that_another_process_does_not_share() -> None:
    pool, first, second = Pool(), Anonymous(), Anonymous()
    one = row(first, pool, session="alice", request_id=b"mail@example.org", prefix=[7])
    same = row(first, pool, session="alice", request_id=b"mail@example.org", prefix=[7])
    elsewhere = row(second, pool, session="alice", request_id=b"mail@example.org", prefix=[7])
    for name in ("session", "request", "prompt"):
        assert one[name] == same[name] != elsewhere[name]
    assert "mail@example.org" not in str(one)


def test_names_of_models_that_a_client_made_up_are_left_out() -> None:
    assert row(Anonymous(), Pool(), attempted=["small", "my secret"])["attempted"] == ["small"]


def test_blocks_are_numbers_in_the_order_of_their_first_use_as_runs() -> None:
    pool, anonymous = Pool(), Anonymous()
    first = row(anonymous, pool, prefix=range(1000, 1012))  # 12 links are 3 blocks
    longer = row(anonymous, pool, prefix=range(1000, 1020))
    other = row(anonymous, pool, prefix=[*range(1000, 1004), *range(2000, 2008)])
    assert (first["blocks"], longer["blocks"], other["blocks"]) == ([[0, 3]], [[0, 5]], [[0, 1], [5, 2]])
    assert first["block_tokens"] == 480.0


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=24), max_size=20))
def test_equal_links_have_equal_numbers_while_they_are_remembered(chains: list[list[int]]) -> None:
    pool, anonymous = Pool(), Anonymous()
    numbers: dict[int, int] = {}
    for chain in chains:
        found = [
            n for first, count in row(anonymous, pool, prefix=chain)["blocks"] for n in range(first, first + count)
        ]
        links = chain[3::4]
        assert len(found) == len(links)
        assert all(numbers.setdefault(link, number) == number for link, number in zip(links, found, strict=True))


def test_blocks_that_are_used_again_and_again_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_BLOCK_NAMES", 40)
    pool, anonymous = Pool(), Anonymous()
    shared = range(1000, 1008)
    for number in range(50):
        assert row(anonymous, pool, prefix=shared)["blocks"] == [[0, 2]]
        row(anonymous, pool, prefix=range(number * 100, number * 100 + 12))


def test_the_memory_of_blocks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_BLOCK_NAMES", 10)
    pool, anonymous = Pool(), Anonymous()
    for number in range(50):
        row(anonymous, pool, prefix=range(number * 100, number * 100 + 12))
        assert len(anonymous._numbers) + len(anonymous._older) <= 10
