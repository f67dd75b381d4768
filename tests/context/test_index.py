"""What the context index finds, forgets and bounds."""

from __future__ import annotations

import time
from itertools import permutations
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.context.index import ContextIndex

ROOT = 7


def best(index: ContextIndex, blocks: list[int], root: int = ROOT) -> tuple[int, ...]:
    found = index.search(root, blocks, [1] * len(blocks))
    return found[0].path if found else ()


def test_blocks_are_found_in_the_order_in_which_they_were_sent() -> None:
    index = ContextIndex()
    index.insert(ROOT, [1, 2, 3])
    assert best(index, [2, 4, 1]) == (2, 0)


def test_nothing_is_found_after_another_beginning() -> None:
    index = ContextIndex()
    index.insert(ROOT, [1, 2])
    assert best(index, [2, 1], root=8) == ()


def test_only_blocks_of_the_request_are_on_a_path() -> None:
    index = ContextIndex()
    index.insert(ROOT, [1, 9, 2])
    assert best(index, [2, 1]) == (1,)


def test_the_longest_path_wins_by_size_not_by_number() -> None:
    index = ContextIndex()
    index.insert(ROOT, [1, 2])
    index.insert(ROOT, [3])
    assert index.search(ROOT, [1, 2, 3], [10, 10, 500])[0].path == (2,)


def test_among_equal_paths_the_one_nearest_to_the_request_comes_first() -> None:
    index = ContextIndex()
    for order in permutations([1, 2, 3]):
        index.insert(ROOT, order)
    assert best(index, [2, 3, 1]) == (0, 1, 2)


def test_several_paths_are_given_none_the_beginning_of_another() -> None:
    index = ContextIndex()
    index.insert(ROOT, [1, 2, 3])
    index.insert(ROOT, [3, 1])
    paths = [match.path for match in index.search(ROOT, [1, 2, 3], [1, 1, 1], most=4)]
    assert paths == [(0, 1, 2), (2, 0)]


def test_the_order_used_longest_ago_is_dropped_first() -> None:
    index = ContextIndex(max_prefixes=64)  # one in each table
    for block in range(1000):
        index.insert(ROOT, [block])
    index.insert(ROOT, [5])
    assert best(index, [5]) == (0,)
    assert len(index) <= 64


def test_memory_is_bounded_by_the_number_of_prefixes() -> None:
    index = ContextIndex(max_prefixes=640)
    for request in range(500):
        index.insert(ROOT, range(request * 20, request * 20 + 20))
    assert len(index) <= 640


def test_an_order_that_nobody_holds_is_dropped_with_its_beginnings() -> None:
    index = ContextIndex()
    index.insert(ROOT, [1, 2, 3])
    index.insert(ROOT, [2, 3])
    assert index.known(ROOT, [1, 2, 9]) == 2
    index.drop(ROOT, [1, 2, 9])
    assert best(index, [1, 2, 3]) == (1, 2)


def test_thousands_of_requests_without_a_block_in_common_do_not_slow_it() -> None:
    index = ContextIndex()

    def micros(requests: range) -> float:
        times = []
        for request in requests:
            blocks = [request * 15 + place for place in range(15)]
            started_s = time.thread_time()
            assert best(index, blocks) == ()
            index.insert(ROOT, blocks)
            times.append((time.thread_time() - started_s) * 1e6)
        return median(times)

    first = micros(range(500))
    micros(range(500, 4500))
    assert micros(range(4500, 5000)) < 5 * first


def test_a_search_among_all_permutations_ends_in_bounded_work() -> None:
    index = ContextIndex()
    for order in permutations(range(7)):
        index.insert(ROOT, order)
    found = index.search(ROOT, list(range(20)), [1] * 20, most=3)
    assert [match.size for match in found] == [7, 7, 7]


@settings(deadline=None)
@given(st.lists(st.permutations(range(6)), max_size=8), st.lists(st.integers(0, 9), unique=True, max_size=8))
def test_every_path_was_sent_and_uses_each_block_of_the_request_at_most_once(
    sent: list[list[int]], asked: list[int]
) -> None:
    index = ContextIndex()
    for order in sent:
        index.insert(ROOT, order)
    for match in index.search(ROOT, asked, [1] * len(asked), most=100):
        begins = [asked[position] for position in match.path]
        assert len(set(match.path)) == len(match.path) == match.size
        assert any(order[: len(begins)] == begins for order in sent)
