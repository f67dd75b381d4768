"""Splits: shares by weight, sessions that stay, and models that nobody serves now."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.pool import Pool
from fairlead.core.splits import Rewrites, Split
from tests.core.world import make_endpoint

RNG = Random(0)
WEIGHTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 1_000_000)), min_size=1, max_size=8)


def pool(*models: str) -> Pool:
    return Pool([make_endpoint(f"10.0.0.{number}:1", model) for number, model in enumerate(models)], {})


def test_each_model_gets_its_share() -> None:
    rewrites = Rewrites({"x": Split([("a", 90), ("b", 10)])})
    both = pool("a", "b")
    drawn = Counter(rewrites.model("x", both, b"", RNG) for _ in range(10_000))
    assert drawn["b"] == pytest.approx(1000, abs=150)
    of_sessions = Counter(rewrites.model("x", both, b"session %d" % n, RNG) for n in range(10_000))
    assert of_sessions["b"] == pytest.approx(1000, abs=150)


def test_a_session_keeps_its_model_in_every_sidecar() -> None:
    rewrites = Rewrites({"x": Split([("a", 1), ("b", 1)])})
    both = pool("a", "b")
    for session in (b"one", b"two", b"three"):
        assert len({rewrites.model("x", both, session, Random(seed)) for seed in range(20)}) == 1


def test_a_larger_share_moves_no_more_sessions_than_it_needs() -> None:
    both, sessions = pool("a", "b"), [b"session %d" % n for n in range(5_000)]
    before, after = (Rewrites({"x": Split([("a", 100 - share), ("b", share)])}) for share in (10, 20))
    moved = [(before.model("x", both, s, RNG), after.model("x", both, s, RNG)) for s in sessions]
    assert ("b", "a") not in moved
    assert moved.count(("a", "b")) == pytest.approx(500, abs=120)


@given(WEIGHTS, st.floats(0, 1, exclude_max=True))
def test_every_point_is_of_a_model(weights: list[tuple[str, int]], point: float) -> None:
    split = Split(weights)
    assert split.at(point) in split.models
    assert split.at(0.0) == weights[0][0]


def test_a_model_without_an_endpoint_gets_nothing_while_another_has_one() -> None:
    rewrites = Rewrites({"x": Split([("a", 1), ("gone", 99)])})
    assert {rewrites.model("x", pool("a"), b"", RNG) for _ in range(100)} == {"a"}
    assert rewrites.model("x", pool("other"), b"", Random(1)) in ("a", "gone")


def test_a_name_of_its_own_wins_over_the_rule_for_all_and_what_is_kept_stays() -> None:
    rewrites = Rewrites({"x": Split([("a", 1)])}, Split([("b", 1)])).under({"own": Split([("c", 1)])}, ["own", "route"])
    everything = pool("a", "b", "c")
    asked = {name: rewrites.model(name, everything, b"", RNG) for name in ("x", "y", "own", "route", "")}
    assert asked == {"x": "a", "y": "b", "own": "c", "route": "route", "": ""}


def test_a_split_needs_a_weight() -> None:
    with pytest.raises(ValueError, match="weight above 0"):
        Split([("a", 0)])
