"""Load that others have in flight: the sums are those of the newest words, and silence ends in zero."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core import peers as core_peers
from fairlead.core.load import Load
from fairlead.core.peers import MOST_PEERS, NO_LOAD, Peers

EXPIRY_S = 1.0


@pytest.fixture
def peers() -> Peers:
    return Peers(EXPIRY_S)


def test_the_load_of_others_is_the_sum_of_what_each_said_last(peers: Peers) -> None:
    peers.reported(b"x", 1, {"a:1": Load(1, 10, 5, 0)}, 0)
    peers.reported(b"y", 1, {"a:1": Load(2, 20, 0, 2), "b:1": Load(1)}, 0)
    assert peers.reported(b"x", 2, {"a:1": Load(3, 30, 0, 3)}, 0) == {"a:1": Load(5, 50, 0, 5)}
    assert (peers.of("a:1"), peers.of("b:1"), peers.of("c:1")) == (Load(5, 50, 0, 5), Load(1), NO_LOAD)


def test_an_endpoint_that_is_no_longer_said_has_no_load(peers: Peers) -> None:
    peers.reported(b"x", 1, {"a:1": Load(1)}, 0)
    assert peers.reported(b"x", 2, {}, 0) == {"a:1": NO_LOAD}


def test_a_word_that_was_overtaken_says_nothing(peers: Peers) -> None:
    peers.reported(b"x", 2, {"a:1": Load(1)}, 0)
    assert peers.reported(b"x", 1, {"a:1": Load(9)}, 0) == {}
    assert peers.of("a:1") == Load(1)


@pytest.mark.parametrize("later_s", [EXPIRY_S + 0.01, -1e6])
def test_who_is_silent_counts_no_more(peers: Peers, later_s: float) -> None:
    peers.reported(b"x", 1, {"a:1": Load(1)}, 0)
    assert peers.expire(EXPIRY_S) == {}
    assert peers.expire(later_s) == {"a:1": NO_LOAD}
    assert peers.count == 0


def test_who_leaves_counts_no_more_at_once(peers: Peers) -> None:
    peers.reported(b"x", 1, {"a:1": Load(1)}, 0)
    assert peers.left(b"x") == {"a:1": NO_LOAD}
    assert peers.left(b"x") == {}


def test_inventing_sidecars_does_not_fill_the_memory(peers: Peers) -> None:
    for number in range(MOST_PEERS + 10):
        peers.reported(str(number).encode(), 1, {"a:1": Load(1)}, 0)
    assert (peers.count, peers.of("a:1")) == (MOST_PEERS, Load(MOST_PEERS))


LOADS = st.dictionaries(st.sampled_from(["a:1", "b:1", "c:1"]), st.builds(Load, *[st.integers(0, 9)] * 4), max_size=3)
STEP = st.tuples(st.sampled_from([b"x", b"y", b"z"]), st.sampled_from(["heard", "left", "expire"]), LOADS)


@given(st.lists(st.tuples(STEP, st.floats(0, 0.6)), max_size=60))
def test_the_sums_equal_the_parts_after_every_step_and_end_at_zero(
    steps: list[tuple[tuple[bytes, str, dict[str, Load]], float]],
) -> None:
    peers = Peers(EXPIRY_S)
    said: dict[bytes, tuple[float, dict[str, Load]]] = {}
    applied: dict[str, Load] = {}  # what endpoints are told, if they are told changes only
    now_s = 0.0
    for number, ((name, step, loads), passed_s) in enumerate(steps):
        now_s += passed_s
        if step == "heard":
            applied |= peers.reported(name, number, loads, now_s)
            said[name] = now_s, loads
        elif step == "left":
            applied |= peers.left(name)
            said.pop(name, None)
        else:
            applied |= peers.expire(now_s)
            said = {name: word for name, word in said.items() if now_s - word[0] <= EXPIRY_S}
        for address in ("a:1", "b:1", "c:1"):
            parts = [loads.get(address, NO_LOAD) for _, loads in said.values()]
            assert peers.of(address) == applied.get(address, NO_LOAD) == reduce(Load.plus, parts, NO_LOAD)
    peers.expire(now_s + EXPIRY_S + 1)
    assert [peers.of(address) for address in ("a:1", "b:1", "c:1")] == [NO_LOAD] * 3


def test_no_more_loads_are_kept_than_sidecars_of_a_large_pool_have(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_peers, "MOST_LOADS", 3)
    peers.reported(b"x", 1, {"a:1": Load(1), "b:1": Load(1)}, 0)
    assert peers.reported(b"y", 1, {"a:1": Load(1), "c:1": Load(1)}, 0) == {}
    assert peers.of("a:1") == Load(1)
    peers.reported(b"x", 2, {"a:1": Load(1)}, 0)
    assert peers.reported(b"y", 2, {"a:1": Load(1), "c:1": Load(1)}, 0), "there is room again"
    peers.left(b"x")
    assert peers.reported(b"z", 1, {"a:1": Load(4)}, 0) == {"a:1": Load(5)}
