"""Differential tests against `gorgo-lb` 0.2.0, the package of GORGO's authors.

The paper's score of two weights is the package's `gorgo-2d` with its rates left at 1; its `gorgo` has a third weight,
of the uncached tokens, which is 1 here. What else differs: the package's weights start at 1, the paper's frozen ones
are 0.276 and 0.5; where no probe has answered yet it takes the time of a metrics scrape; equal scores go to the replica
listed first. It also carries baselines that are not as their sources have them, and ours follow the sources: its
least-request takes the greater of scraped and own counts, its power-of-two compares tokens, its prefix-cache looks only
at the best matches, within 2 standard deviations of scraped requests.
"""

from __future__ import annotations

import gorgo as published
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.candidates import Candidate
from fairlead.core.policy import Outcome
from fairlead.policies import build_policy
from fairlead.policies.gorgo_calibrate import Calibrating, GorgoCalibrate, Rates
from tests.core.world import World
from tests.policies.options import TOKENS, best, first, option, pools, prompt

PROMPT = list(range(TOKENS))


def _context(
    options: list[Candidate],
    *,
    queued: dict[str, int],
    tokens: list[int] = PROMPT,
    weights: dict[str, float] | None = None,
    affinity_key: str | None = None,
) -> published.RouteContext:
    """The same pool as the package sees it: each endpoint's cached prefix was dispatched there before."""
    trie = published.RadixTrie()
    for c in options:
        if c.cached_tokens:
            trie.insert(tokens[: c.cached_tokens], endpoint=c.address)
    metrics = {
        c.address: published.ReplicaSnapshot(
            num_running_reqs=c.running_requests,
            num_queue_reqs=c.waiting_requests,
            num_used_tokens=c.used_tokens,
            latency=c.rtt_ms / 1000,
            network_rtt=c.rtt_ms / 1000,
        )
        for c in options
    }
    return published.RouteContext(
        replica_urls=[c.address for c in options],
        metrics=metrics,
        endpoints_queued_tokens=queued,
        endpoints_queued_uncached_tokens={c.address: c.pending_prefill_tokens for c in options},
        endpoints_inflight_requests={c.address: c.inflight_requests for c in options},
        radix_trie=trie,
        token_ids=tokens,
        request_tokens=len(tokens),
        hyperparameters={"defaults": weights or {}},
        affinity_key=affinity_key,
    )


def _unfinished(options: list[Candidate]) -> dict[str, int]:
    return {c.address: c.inflight_prompt_tokens for c in options}


WEIGHTS = st.tuples(st.floats(0.05, 2.0), st.floats(0.05, 0.5))


@pytest.mark.parametrize(("policy", "queue_weight_name"), [("gorgo-2d", "queue_weight"), ("gorgo", "load_weight")])
@given(options=pools(), weights=WEIGHTS)
def test_gorgo_scores_and_chooses_as_published(
    policy: str, queue_weight_name: str, options: list[Candidate], weights: tuple[float, float]
) -> None:
    rtt_weight, queue_weight = weights
    named = {"rtt_weight": rtt_weight, queue_weight_name: queue_weight}
    theirs = published.get_policy(policy).fn(_context(options, queued=_unfinished(options), weights=named))
    ours = first("gorgo", options, rtt_weight=rtt_weight, queue_weight=queue_weight)
    assert theirs.scores is not None
    assert theirs.scores[ours.address] == pytest.approx(theirs.scores[theirs.target])


@given(options=pools(), weights=WEIGHTS)
def test_released_at_the_first_token_gorgo_chooses_as_the_package_with_its_uncached_counter(
    options: list[Candidate], weights: tuple[float, float]
) -> None:
    rtt_weight, queue_weight = weights
    named = {"rtt_weight": rtt_weight, "queue_weight": queue_weight}
    pending = {c.address: c.pending_prefill_tokens for c in options}
    theirs = published.route_gorgo_2d(_context(options, queued=pending, weights=named))
    ours = first("gorgo", options, rtt_weight=rtt_weight, queue_weight=queue_weight, release_at_first_token=True)
    assert theirs.scores is not None
    assert theirs.scores[ours.address] == pytest.approx(theirs.scores[theirs.target])


@given(options=pools())
def test_least_load_chooses_a_replica_that_the_package_may_choose(options: list[Candidate]) -> None:
    context = _context(options, queued=_unfinished(options))
    theirs = published.get_policy("least-load").fn(context).target
    ours = first("least_load", options).address
    queued = context.endpoints_queued_tokens
    assert context.metrics[ours].combined_load(queued[ours]) == context.metrics[theirs].combined_load(queued[theirs])


HOMES = [option(f"e{index}:1") for index in range(5)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=20))
def test_prompts_that_the_package_keeps_together_by_their_first_256_tokens_stay_together_here(
    prompts: list[tuple[int, int]],
) -> None:
    """A prompt is a first block of 256 tokens, in our chain 2 blocks of bytes, and a turn of its own."""
    package = published.get_policy("simple-session-affinity").fn
    homes: dict[tuple[int, ...], set[tuple[str, str]]] = {}
    for system, turn in prompts:
        tokens = [system] * 256 + [1000 + turn] * 64
        theirs = package(_context(HOMES, queued={}, tokens=tokens)).target
        ours = best("session_affinity", HOMES, prompt(prefix=[system, system + 10, turn + 100]), key="prompt")
        homes.setdefault(tuple(tokens[:256]), set()).add((theirs, ours))
    assert all(len(pairs) == 1 for pairs in homes.values())


@given(st.integers(0, 4), st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=20, unique=True))
def test_when_an_endpoint_goes_only_its_sessions_move_as_in_the_package(gone: int, sessions: list[str]) -> None:
    left = [home for index, home in enumerate(HOMES) if index != gone]
    for session in sessions:
        for chosen in (_published_home, _our_nearest):
            before, after = chosen(HOMES, session), chosen(left, session)
            assert (after == before) == (before != HOMES[gone].address)


def _published_home(options: list[Candidate], session: str) -> str:
    return str(published.route_session_affinity(_context(options, queued={}, affinity_key=session)).target)


def _our_nearest(options: list[Candidate], session: str) -> str:
    return best("session_affinity", options, prompt(session))


FINISHED = st.tuples(st.integers(0, 3), st.integers(1, 30_000), st.integers(0, 200_000), st.floats(1.0, 60_000.0))


@given(st.lists(FINISHED, min_size=12, max_size=60))
def test_calibrated_rates_are_those_of_the_package(finished: list[tuple[int, int, int, float]]) -> None:
    theirs, ours = published.Calibration(), Rates()
    for replica, uncached, queued, ttft_ms in finished:
        theirs.add(target=f"e{replica}", uncached_at_dispatch=uncached, queued_at_dispatch=queued, ttft_ms=ttft_ms)
        ours.add(f"e{replica}", uncached, queued, ttft_ms)
    expected, found = theirs.rates(), ours.fitted()
    if found is not None and expected["prefill_rate"] is not None:
        assert found == pytest.approx((expected["prefill_rate"], expected["queue_rate"]), rel=1e-3, abs=1e-6)


def test_calibration_finds_the_rates_of_a_pool_and_routes_by_them() -> None:
    rule = build_policy("gorgo_calibrate", {"report_every": 8})
    assert isinstance(rule, GorgoCalibrate)
    tuner, tuned = Calibrating(rule), None
    for number in range(16):
        queued = (number * 7) % 5 * 1000
        world = World("gorgo_calibrate")
        world.endpoint(f"e{number % 2}:1", inflight_prompt_tokens=queued)
        decision = world.pick(tokens=1000 + 100 * number)
        ttft_ms = 20.0 * (number % 2) + 0.1 * (1000 + 100 * number) + 0.03 * queued
        tuned = tuner.observe(decision, Outcome(200, 2 * ttft_ms, ttft_ms), number, 0.0)
    assert isinstance(tuned, GorgoCalibrate)
    assert tuned.prefill_rate == pytest.approx(0.1)
    assert tuned.queue_rate == pytest.approx(0.03)
