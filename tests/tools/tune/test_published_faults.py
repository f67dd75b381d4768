"""The seven faults of GORGO's published tuner: each is shown on it, and its absence on ours, in the same world."""

from __future__ import annotations

import math
from random import Random
from typing import Any, Final

import pytest

from fairlead.tools.tune.gorgo_hillclimb import BOX as PUBLISHED_BOX
from fairlead.tools.tune.published import EvolutionStrategy, HillClimb
from fairlead.tuning.online import TunerSettings
from fairlead.tuning.search import MOST_STEP, Search
from fairlead.tuning.weights import BOXES
from tests.tuning.world import SMALL, Traffic, hillclimbing, tuned

START: Final = {"rtt_weight": 0.5, "queue_weight": 0.1}
PHYSICAL_MS_PER_TOKEN: Final = (0.06, 0.13)  # of prefill, as measured


def weights_in_force(traffic: Traffic) -> list[tuple[float, float]]:
    """In their order, without repeats in a row."""
    found: list[tuple[float, float]] = []
    for number in sorted(traffic.routed_by):
        policy = traffic.routed_by[number]
        weights = (policy.rtt_weight, policy.queue_weight)
        if not found or found[-1] != weights:
            found.append(weights)
    return found


# 1: the tolerance has the wrong sign.


def test_weights_that_are_a_little_worse_are_accepted_as_published_and_not_here() -> None:
    published = EvolutionStrategy(START, PUBLISHED_BOX, Random(0))
    published.report(START, -2.0)
    assert published.report({"rtt_weight": 1.0, "queue_weight": 0.3}, -2.009)

    def a_little_worse(policy: Any, _number: int) -> float:
        return 2000.0 if policy.queue_weight == 1.0 else 2009.0

    traffic, tuner = tuned(a_little_worse, gap_s=1.0)
    traffic.run(3000)
    assert set(tuner.verdicts) == {"rejected"}


# 2: samples count where they end and windows overlap, so a candidate is scored by what others routed.


def test_a_candidate_is_scored_by_the_requests_of_others_as_published_and_not_here() -> None:
    climb = HillClimb(START, PUBLISHED_BOX, Random(0), window=128, report_every=32)
    scored: list[float] = []
    report = climb._strategy.report

    def noted(candidate: Any, score: float) -> bool:
        scored.append(-score)
        return report(candidate, score)

    climb._strategy.report = noted  # type: ignore[method-assign]
    for _ in range(128):
        climb.observed(5000.0)
    for _ in range(32):  # the first candidate's own requests, all of them fast
        climb.observed(100.0)
    assert scored == [5000.0, 5000.0]

    def by_weights(policy: Any, number: int) -> float:
        """Times of the incumbent vary and are long, so that its requests end while a candidate is in force."""
        return 3000.0 + number % 7 if policy.queue_weight == 1.0 else 1000.0

    traffic, tuner = tuned(by_weights)
    while not tuner.trials:
        traffic.run(1)
    assert tuner.trials[0].p95_ms == 1000.0
    assert tuner.trials[0].incumbent_p95_ms == 3006.0


# 3: the incumbent is never measured again.


def test_a_score_that_is_high_by_chance_stays_the_best_forever_as_published_and_not_here() -> None:
    published = EvolutionStrategy(START, PUBLISHED_BOX, Random(0))
    published.report(START, -1.276)
    for _ in range(100):
        candidate = published.propose()
        if candidate is None:
            break
        published.report(candidate, -3.48 + 1.0)  # far better than what START comes to now
    assert published.best == START

    def lucky_at_first(policy: Any, number: int) -> float:
        """A quick hour, then all is slower; other weights than the first would be better ever after."""
        if number < 61:
            return 1276.0
        return 3480.0 if policy.queue_weight == 1.0 else 2000.0

    traffic, tuner = tuned(lucky_at_first, gap_s=0.5)
    traffic.run(2000)
    assert tuner.incumbent["queue_weight"] != 1.0


# 4: the curve that is shown as learning is the cold start.


def cold_start(_policy: Any, number: int) -> float:
    """Caches fill over the first requests, whatever the weights."""
    return 100.0 + 900.0 * math.exp(-number / 200.0)


def test_a_cold_start_is_taken_for_success_as_published_and_not_here() -> None:
    published = hillclimbing(cold_start, gap_s=1.0)
    published.run(1000)
    assert len(weights_in_force(published)) > 20
    traffic, tuner = tuned(cold_start, TunerSettings(window=40, wash_out=10, warm_up=800), gap_s=1.0)
    traffic.run(800)
    assert len(weights_in_force(traffic)) == 1
    traffic.run(3000)
    assert tuner.verdicts["accepted"] == 0


def test_while_all_gets_faster_by_itself_neighbours_before_and_after_show_no_gain() -> None:
    def ever_faster(_policy: Any, number: int) -> float:
        return 1000.0 * math.exp(-number / 2000.0)

    traffic, tuner = tuned(ever_faster, SMALL, gap_s=1.0)
    traffic.run(4000)
    assert tuner.verdicts.total() > 10
    assert tuner.verdicts["accepted"] == 0


# 5: the step grows beyond the box, and proposals are its corners.


def test_steps_outgrow_the_box_as_published_and_not_here() -> None:
    published = EvolutionStrategy(START, PUBLISHED_BOX, Random(0))
    search = Search({"rtt_weight": 1.0, "queue_weight": 1.0}, BOXES["fairlead"], Random(0))
    score = -1000.0
    corners = 0
    for _ in range(50):
        score *= 0.9
        candidate = published.propose()
        assert candidate is not None
        published.report(candidate, score)
        mine = search.propose()
        search.accept(mine)
        corners += any(mine[name] in bounds for name, bounds in BOXES["fairlead"].items())
    assert published.sigma > 3 * math.log(2.0 / 0.05)
    assert search.step <= MOST_STEP
    assert corners == 0


# 6: milliseconds and tokens are added at weight 1, and the physical weight lies outside the box.


@pytest.mark.parametrize("ms_per_token", PHYSICAL_MS_PER_TOKEN)
def test_the_physical_weight_lies_outside_the_published_box_and_inside_ours(ms_per_token: float) -> None:
    physical = 1.0 / ms_per_token
    assert physical > PUBLISHED_BOX["rtt_weight"][1]
    low, high = BOXES["gorgo"]["rtt_weight"]
    assert low < physical < high


def test_in_milliseconds_the_physical_weight_is_one_and_in_the_middle_of_the_box() -> None:
    for low, high in BOXES["fairlead"].values():
        assert math.sqrt(low * high) == pytest.approx(1.0)


# 7: time to the first token alone is rewarded.


def reward_hack(policy: Any, _number: int) -> tuple[float, float]:
    """Without regard to queues the first token comes a little earlier and the end far later."""
    careless = 1.0 / policy.queue_weight
    return 2000.0 * (1.0 + careless), 1000.0 * (1.0 + 1.0 / (1.0 + careless))


def test_the_end_is_given_away_for_the_first_token_as_published_and_not_here() -> None:
    published = hillclimbing(reward_hack, gap_s=1.0, queue_weight=0.4)
    published.run(8000)
    assert published.policy.queue_weight < 0.2
    traffic, tuner = tuned(reward_hack, gap_s=1.0)
    traffic.run(4000)
    assert tuner.incumbent["queue_weight"] >= 1.0
