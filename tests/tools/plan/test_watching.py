"""Sidecars are watched through failed scrapes and restarts, all of them."""

from __future__ import annotations

import pytest

from fairlead.tools.plan import watching
from fairlead.tools.plan.watching import Counter


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """What each sidecar's metrics page counts; None while it does not answer."""
    counts: dict[str, int | None] = {}
    monkeypatch.setattr(watching, "_counted", lambda url, _route: counts.get(url))
    return counts


def test_requests_of_all_sidecars_are_added_up(said: dict[str, int | None]) -> None:
    counter = Counter(["a", "b"], "answer")
    said.update(a=100, b=50)
    assert counter.rate_per_s(0.0) is None
    said.update(a=160, b=80)
    assert counter.rate_per_s(10.0) == 9.0


def test_a_failed_scrape_is_made_up_for_by_the_next(said: dict[str, int | None]) -> None:
    counter = Counter(["a"], "answer")
    said.update(a=100)
    counter.rate_per_s(0.0)
    said.update(a=None)
    assert counter.rate_per_s(10.0) is None
    assert counter.failing == ["a"]
    said.update(a=300)
    assert counter.rate_per_s(20.0) == 10.0
    assert counter.failing == []


def test_a_restart_counts_from_zero(said: dict[str, int | None]) -> None:
    counter = Counter(["a"], "answer")
    said.update(a=1000)
    counter.rate_per_s(0.0)
    said.update(a=20)
    assert counter.rate_per_s(10.0) == 2.0


def test_a_sidecar_that_comes_later_counts_from_then_on(said: dict[str, int | None]) -> None:
    counter = Counter(["a", "b"], "answer")
    said.update(a=0)
    counter.rate_per_s(0.0)
    said.update(a=10, b=500)
    assert counter.rate_per_s(10.0) == 1.0
    said.update(a=20, b=520)
    assert counter.rate_per_s(20.0) == 3.0


def test_what_a_sidecar_serves_that_does_not_answer_is_not_taken_for_gone(said: dict[str, int | None]) -> None:
    """A plan for the others' rate alone would be for half of the traffic."""
    counter = Counter(["a", "b"], "answer")
    said.update(a=0, b=0)
    counter.rate_per_s(0.0)
    said.update(b=None)
    rates = []
    for window in range(1, 5):
        said.update(a=100 * window)
        rates.append(counter.rate_per_s(10.0 * window))
    assert rates == [None, None, None, 10.0], "it is gone after some windows"
    said.update(a=500, b=500)
    assert counter.rate_per_s(50.0) == 20.0
