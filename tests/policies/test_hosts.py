"""Policies that keep a session, or a prompt, where it is: ear, unified and session_affinity's form by prompt."""

from __future__ import annotations

from hypothesis import given

from fairlead.core.candidates import Candidate
from tests.policies.options import TOKENS, best, option, pools, prompt, rank


@given(pools(hosted=True))
def test_ear_takes_the_bound_endpoint_and_without_one_the_fewest_pending_tokens(options: list[Candidate]) -> None:
    ranking = rank("ear", options)
    chosen = ranking.order[0].candidate
    if any(c.is_affine for c in options):
        assert (chosen.is_affine, ranking.why) == (True, "affinity")
    else:
        assert chosen == min(options, key=lambda c: (c.pending_prefill_tokens, c.last_chosen))
        assert ranking.why == "cost"


def test_ear_falls_back_from_the_bound_endpoint_to_the_fewest_pending_tokens() -> None:
    options = [
        option("a:1", pending_prefill_tokens=20),
        option("b:1", pending_prefill_tokens=10),
        option("c:1", pending_prefill_tokens=30, is_affine=True),
    ]
    assert [r.candidate.address for r in rank("ear", options).order] == ["c:1", "b:1", "a:1"]


@given(pools(hosted=True))
def test_unified_keeps_a_fit_owner_and_else_takes_the_least_lmetric(options: list[Candidate]) -> None:
    counts = [c.inflight_requests for c in options]
    kept = [
        c
        for c in options
        if c.is_affine and c.cached_tokens / TOKENS > 0.5 and c.inflight_requests <= 2.0 * sum(counts) / len(counts)
    ]
    ranking = rank("unified", options)
    least = min(
        options,
        key=lambda c: (
            (c.pending_prefill_tokens + c.uncached_tokens) * c.inflight_requests,
            c.uncached_tokens,
            c.inflight_requests,
            c.last_chosen,
        ),
    )
    assert (ranking.order[0].candidate, ranking.why) == ((kept[0], "affinity") if kept else (least, "cost"))


def _owned(cached_tokens: int, requests: int) -> list[Candidate]:
    """An owner that lmetric would not choose, as much prefill waits there, and two others."""
    owner = option(
        "a:1", is_affine=True, cached_tokens=cached_tokens, inflight_requests=requests, pending_prefill_tokens=5000
    )
    return [owner, *(option(f"{letter}:1", inflight_requests=2) for letter in "bc")]


def test_unified_leaves_an_owner_that_has_lost_half_of_the_prompt() -> None:
    assert best("unified", _owned(501, 3)) == "a:1"
    assert best("unified", _owned(500, 3)) == "b:1"


def test_unified_leaves_an_owner_with_more_than_twice_the_mean_of_requests() -> None:
    assert best("unified", _owned(900, 8)) == "a:1"  # the mean is 4
    assert best("unified", _owned(900, 9)) == "b:1"
    assert best("unified", _owned(900, 8), overload=1.3) == "b:1"


def test_unified_sends_a_new_session_to_the_idle_endpoint_with_most_of_it_cached() -> None:
    options = [option("a:1"), option("b:1", cached_tokens=200, last_chosen=9), option("c:1")]
    assert best("unified", options) == "b:1"


def test_unified_sends_a_new_session_in_turn_where_nothing_distinguishes_idle_endpoints() -> None:
    assert best("unified", [option("a:1", last_chosen=2), option("b:1", last_chosen=1)]) == "b:1"


HOMES = [option(f"e{index}:1") for index in range(16)]


def _bound(prefix: list[int], session: str | None = None) -> str:
    return best("session_affinity", HOMES, prompt(session, prefix), key="prompt")


def test_prompts_that_share_their_first_kilobyte_share_an_endpoint_whatever_their_session() -> None:
    system_prompt = [11, 12]
    assert len({_bound([*system_prompt, turn], session=f"s{turn}") for turn in range(50)}) == 1


def test_prompts_that_differ_in_their_first_kilobyte_spread() -> None:
    assert len({_bound([11, second]) for second in range(100)}) > 10


def test_a_prompt_of_one_block_is_its_own_key() -> None:
    assert len({_bound([first]) for first in range(100)}) > 10
    assert _bound([5]) == _bound([5])


def test_a_prompt_shorter_than_a_block_goes_to_a_random_endpoint_even_with_a_session() -> None:
    ranking = rank("session_affinity", HOMES, prompt("s"), key="prompt")
    assert ranking.why == "cost"
