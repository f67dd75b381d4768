"""The offline index: the paper's distance, its tree, and the orders that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.tools.reuse import clustering
from fairlead.tools.reuse.clustering import ALPHA, cluster, distances
from fairlead.tools.reuse.schedule import schedule

CONTEXTS = st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=12)


def orders(contexts: list[list[int]]) -> list[list[int]]:
    return [[context[place] for place in p.order] for context, p in zip(contexts, cluster(contexts), strict=True)]


def distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Equation 1 as the paper writes it."""
    moved = [abs(place - other.index(block)) for place, block in enumerate(one) if block in other]
    if not moved:
        return 1.0
    return 1 - len(moved) / max(len(one), len(other)) + ALPHA * sum(moved) / len(moved)


def test_the_distance_is_smaller_where_shared_blocks_stand_at_the_same_places() -> None:
    """The four contexts of section 4.1: A-B, B-C and B-D share two blocks of four, B-D at the same places."""
    a, b, c, d = (3, 5, 1, 7), (2, 6, 3, 5), (3, 5, 8, 9), (2, 6, 4, 0)
    to_d, to_a, to_c = distances([b, d])[0], distances([b, a])[0], distances([b, c])[0]
    assert to_d == pytest.approx(0.5)
    assert to_a == pytest.approx(0.5 + 0.001 * 2)
    assert to_d < to_c
    assert distances([a, (8, 9)])[0] == 1.0


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), unique=True, max_size=8).map(tuple), min_size=2, max_size=8))
def test_all_distances_at_once_are_those_of_each_pair(contexts: list[tuple[int, ...]]) -> None:
    expected = [distance(one, other) for place, one in enumerate(contexts) for other in contexts[place + 1 :]]
    assert distances(contexts).tolist() == pytest.approx(expected)


def test_the_papers_example_shares_its_prefixes() -> None:
    """Figure 5: {2,1,3} and {2,6,1} merge first and share {1,2}; {4,1,0} shares {1} with both."""
    first, second, third = orders([[2, 1, 3], [2, 6, 1], [4, 1, 0]])
    assert (first, second, third) == ([1, 2, 3], [1, 2, 6], [1, 4, 0])


def test_contexts_of_the_same_blocks_get_the_same_order_and_each_its_own_place_in_the_answer() -> None:
    one, other = [1, 2, 3], [3, 2, 1]
    placed = cluster([one, other])
    assert [one[place] for place in placed[0].order] == [other[place] for place in placed[1].order]
    assert placed[0].order != placed[1].order


def test_unrelated_contexts_stay_as_they_are() -> None:
    assert orders([[5, 1], [9, 7], [4]]) == [[5, 1], [9, 7], [4]]


def test_many_contexts_are_clustered_in_pieces_with_as_good_as_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = Random(1)
    contexts = [[topic * 100 + block for block in rng.sample(range(9), 6)] for topic in range(40) for _ in range(12)]
    rng.shuffle(contexts)
    whole = shared_beginnings(orders(contexts))
    monkeypatch.setattr(clustering, "EXACT", 100)
    monkeypatch.setattr(clustering, "_PIECE", 100)
    assert shared_beginnings(orders(contexts)) > 0.9 * whole


def shared_beginnings(ordered: list[list[int]]) -> int:
    seen: set[tuple[int, ...]] = set()
    shared = 0
    for order in ordered:
        beginnings = {tuple(order[:length]) for length in range(1, len(order) + 1)}
        shared += len(beginnings & seen)
        seen |= beginnings
    return shared


@settings(deadline=None)
@given(CONTEXTS)
def test_an_order_has_every_block_once_and_the_same_contexts_give_the_same_orders(contexts: list[list[int]]) -> None:
    placed = cluster(contexts)
    for context, place in zip(contexts, placed, strict=True):
        assert sorted(place.order) == list(range(len(context)))
    assert cluster(contexts) == placed


@settings(deadline=None)
@given(CONTEXTS)
def test_contexts_under_a_common_node_begin_with_the_same_blocks(contexts: list[list[int]]) -> None:
    placed = cluster(contexts)
    for one, a in zip(contexts, placed, strict=True):
        for other, b in zip(contexts, placed, strict=True):
            if len(a.path) > 1 and a.path[:-1] == b.path[: len(a.path) - 1]:
                assert one[a.order[0]] == other[b.order[0]]


def test_a_schedule_keeps_groups_together_the_largest_first_and_longer_paths_before_shorter() -> None:
    """Figure 7: C6 and C8 of one group before C3, and C7, which shares nothing, last."""
    paths = [(0, 0, 2), (0, 1), (1,), (0, 0, 3)]
    assert schedule(paths) == [0, 3, 1, 2]


@settings(deadline=None)
@given(CONTEXTS)
def test_a_schedule_runs_each_context_once(contexts: list[list[int]]) -> None:
    paths = [place.path for place in cluster(contexts)]
    assert sorted(schedule(paths)) == list(range(len(contexts)))
