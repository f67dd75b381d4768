"""The tuner of live traffic: what it scores, what it accepts, and when it gives up."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.policy import Outcome
from fairlead.tuning.online import TunerSettings
from tests.tuning.world import SMALL, Traffic, tuned


def steady(_policy: Any, _number: int) -> float:
    return 100.0


def queue_matters(policy: Any, _number: int) -> float:
    """Twice the queue weight takes 50 ms less."""
    return 500.0 - 50.0 * math.log2(policy.queue_weight)


def noisy(seed: int, spread: float) -> Any:
    rng = Random(seed)
    return lambda _policy, _number: 100.0 * math.exp(rng.gauss(0.0, spread))


def test_it_climbs_where_there_is_something_to_gain() -> None:
    traffic, tuner = tuned(queue_matters)
    traffic.run(8000)
    assert tuner.incumbent["queue_weight"] > 2.0
    assert tuner.verdicts["accepted"] >= 2


def test_where_no_weights_are_better_none_are_accepted() -> None:
    traffic, tuner = tuned(steady)
    traffic.run(8000)
    assert set(tuner.verdicts) == {"rejected"}
    assert tuner.incumbent == {"rtt_weight": 1.0, "queue_weight": 1.0}


def test_noise_is_seldom_taken_for_a_gain() -> None:
    verdicts: Counter[str] = Counter()
    for seed in range(10):
        traffic, tuner = tuned(noisy(seed, 1.0), seed=seed)
        traffic.run(6000)
        verdicts += Counter[str](tuner.verdicts)
    assert verdicts.total() > 80
    assert verdicts["accepted"] <= verdicts.total() / 5


def test_a_gain_below_the_noise_of_lengths_is_found_where_lengths_are_known() -> None:
    def long_and_short(seed: int, *, known: bool) -> Any:
        rng = Random(seed)

        def times(policy: Any, _number: int) -> Outcome:
            tokens = int(rng.lognormvariate(5.0, 1.0)) + 1
            total_ms = 10.0 * tokens + 600.0 / policy.queue_weight
            return Outcome(200, total_ms, None, 1000, None, tokens if known else None)

        return times

    found = {}
    for known in (True, False):
        tuners = [tuned(long_and_short(seed, known=known), TunerSettings(), seed=seed, gap_s=1.0) for seed in range(5)]
        for traffic, _ in tuners:
            traffic.run(4000)
        found[known] = sum(math.log(tuner.incumbent["queue_weight"]) for _, tuner in tuners) / len(tuners)
    assert found[True] > max(0.5, 2 * found[False])


def test_what_it_would_have_accepted_is_reported_and_nothing_is_routed_differently_in_shadow() -> None:
    traffic, tuner = tuned(noisy(1, 1.0), apply=False, settings=TunerSettings(20, 5, 20, confidence=0.0))
    traffic.run(5000)
    assert len({id(policy) for policy in traffic.routed_by.values()}) == 1
    assert tuner.verdicts["accepted"] > 0
    assert tuner.incumbent == tuner.configured


def test_every_trial_is_kept_with_both_measures_and_its_verdict() -> None:
    traffic, tuner = tuned(queue_matters)
    traffic.run(3000)
    assert [trial.number for trial in tuner.trials] == list(range(1, len(tuner.trials) + 1))
    accepted = next(trial for trial in tuner.trials if trial.verdict == "accepted")
    assert accepted.p95_ms is not None
    assert accepted.incumbent_p95_ms is not None
    assert accepted.p95_ms < accepted.incumbent_p95_ms
    assert accepted.gain is not None
    assert accepted.gain == pytest.approx(math.log(accepted.incumbent_p95_ms / accepted.p95_ms), rel=0.01)
    assert accepted.expected_gain == pytest.approx(accepted.gain, rel=0.2)


def test_a_candidate_that_is_certain_to_pass_the_guard_is_given_up_before_its_window_is_full() -> None:
    def far_worse(policy: Any, _number: int) -> float:
        return 100.0 if policy.queue_weight == 1.0 else 10_000.0

    traffic, tuner = tuned(far_worse, TunerSettings(window=1000, wash_out=0, warm_up=0), gap_s=0.1)
    traffic.run(1100)
    assert not tuner.verdicts
    traffic.run(400)
    assert list(tuner.verdicts) == ["guard"]


def test_a_candidate_that_is_later_to_its_first_token_is_not_taken_whatever_it_gains_at_the_end() -> None:
    def trade(policy: Any, _number: int) -> tuple[float, float]:
        return (100.0, 10.0) if policy.queue_weight == 1.0 else (70.0, 13.0)

    traffic, tuner = tuned(trade)
    traffic.run(3000)
    assert tuner.verdicts["first_token"] > 0
    assert tuner.verdicts["accepted"] == 0


def test_weights_that_were_accepted_and_pass_the_guard_later_give_way_to_those_of_the_configuration() -> None:
    traffic, tuner = tuned(queue_matters)
    while not tuner.verdicts["accepted"]:
        traffic.run(1)
    traffic.run(200)
    traffic.times_ms = lambda policy, _number: 100.0 if policy.queue_weight == 1.0 else 5000.0
    traffic.run(2000)
    assert tuner.verdicts["rolled_back"] == 1
    assert tuner.incumbent == tuner.configured


def test_weights_that_were_accepted_stay_where_the_configured_ones_were_later_still() -> None:
    def slow_when_configured(policy: Any, _number: int) -> float:
        return 1000.0 if policy.queue_weight == 1.0 else 500.0

    traffic, tuner = tuned(slow_when_configured)
    while not tuner.verdicts["accepted"]:
        traffic.run(1)
    accepted = tuner.incumbent
    traffic.run(200)
    traffic.times_ms = lambda policy, _number: 1200.0 if policy.queue_weight != 1.0 else 2400.0
    traffic.run(4000)
    assert tuner.verdicts["rolled_back"] == 0
    assert accepted["queue_weight"] != 1.0


def test_weights_that_gave_way_are_the_first_to_be_tried_again() -> None:
    traffic, tuner = tuned(queue_matters)
    while not tuner.verdicts["accepted"]:
        traffic.run(1)
    traffic.run(200)
    gave_way = tuner.incumbent
    traffic.times_ms = lambda policy, _number: 100.0 if policy.queue_weight == 1.0 else 5000.0
    while not tuner.verdicts["rolled_back"]:
        gave_way = tuner.incumbent
        traffic.run(1)
    traffic.times_ms = queue_matters
    while tuner.candidate is None:
        traffic.run(1)
    assert tuner.candidate == gave_way


def test_small_steps_freeze_the_weights_and_another_traffic_thaws_them() -> None:
    traffic, tuner = tuned(steady)
    traffic.run(20_000)
    assert tuner.state == "frozen"
    frozen = {id(policy) for number, policy in traffic.routed_by.items() if number > 19_500}
    assert len(frozen) == 1
    traffic.times_ms = queue_matters
    traffic.run(8000)
    assert tuner.incumbent["queue_weight"] > 2.0


def test_frozen_by_hand_it_returns_to_the_incumbent_at_once_and_tries_nothing_until_thawed() -> None:
    traffic, tuner = tuned(steady)
    while tuner.candidate is None or traffic.policy.queue_weight == 1.0:
        traffic.run(1)
    tuner.freeze()
    traffic.run(20)
    assert traffic.policy.queue_weight == 1.0
    tried = tuner.verdicts.total()
    traffic.run(2000)
    assert tuner.verdicts.total() == tried
    tuner.thaw()
    traffic.run(2000)
    assert tuner.verdicts.total() > tried


def test_frozen_by_hand_it_does_not_thaw_when_the_traffic_changes() -> None:
    traffic, tuner = tuned(steady)
    traffic.run(1000)
    tuner.freeze()
    traffic.times_ms = lambda _policy, _number: 5000.0
    tried = tuner.verdicts.total()
    traffic.run(3000)
    assert (tuner.state, tuner.verdicts.total()) == ("frozen", tried)


@pytest.mark.parametrize("time_ms", [0.0, 1e13])
def test_times_of_nothing_and_requests_that_never_end_break_nothing(time_ms: float) -> None:
    traffic, tuner = tuned(lambda _policy, number: time_ms if number > 300 else 100.0)
    traffic.run(2000)
    assert tuner.verdicts["accepted"] == 0


def test_a_failing_engine_is_no_gain_however_fast_it_fails() -> None:
    def quick_failures(policy: Any, _number: int) -> float:
        return 100.0 if policy.queue_weight == 1.0 else 1.0

    traffic, tuner = tuned(quick_failures)
    for _ in range(3000):
        traffic.run(1, code=200 if traffic.policy.queue_weight == 1.0 else 503)
    assert set(tuner.verdicts) == {"guard"}


def test_requests_that_never_end_do_not_stop_the_tuner() -> None:
    def lost(_policy: Any, number: int) -> float:
        return 1e12 if number % 50 == 0 else 100.0

    traffic, tuner = tuned(lost, TunerSettings(window=40, wash_out=0, warm_up=0, patience_s=1.0))
    traffic.run(5000)
    assert tuner.verdicts.total() > 5


def test_it_may_begin_on_a_router_that_has_decided_before() -> None:
    traffic, tuner = tuned(queue_matters)
    policy = traffic.policy
    traffic.router.use(policy)
    traffic.run(5000)
    traffic.router.use(policy, tuner)
    traffic.run(8000)
    assert tuner.incumbent["queue_weight"] > 2.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 1.5), st.floats(-2.0, 2.0))
def test_weights_in_force_never_leave_the_box(seed: int, spread: float, slope: float) -> None:
    rng = Random(seed)

    def times(policy: Any, _number: int) -> float:
        return float(100.0 * policy.queue_weight**slope * math.exp(rng.gauss(0.0, spread)))

    traffic, _ = tuned(times, SMALL, seed=seed)
    traffic.run(1500)
    in_force = {(policy.rtt_weight, policy.queue_weight) for policy in traffic.routed_by.values()}
    assert all(0.25 <= weight <= 4.0 for pair in in_force for weight in pair)


def _requests_by_weights(traffic: Traffic) -> list[int]:
    """How many requests in a row were routed by the same weights."""
    runs: list[int] = []
    last = None
    for number in sorted(traffic.routed_by):
        policy = traffic.routed_by[number]
        if policy is not last:
            runs.append(0)
        runs[-1] += 1
        last = policy
    return runs


def test_each_candidate_routes_a_wash_out_and_a_window_of_requests() -> None:
    traffic, _ = tuned(steady)
    traffic.run(3000)
    inflight = 12  # requests are decided while the last of the window end
    assert all(50 <= run <= 50 + inflight for run in _requests_by_weights(traffic)[1:-1])
