"""The search: where it proposes, and what it keeps of trials."""

from __future__ import annotations

from random import Random

from fairlead.tuning.search import LEAST_STEP, Search
from fairlead.tuning.weights import BOXES

BOX = BOXES["fairlead"]
HOME = {"rtt_weight": 1.0, "queue_weight": 1.0}


def test_after_trials_it_proposes_in_the_direction_that_gained() -> None:
    search = Search(HOME, BOX, Random(0))
    for _ in range(10):
        search.learn({"rtt_weight": 1.0, "queue_weight": 1.5}, 0.1, 0.02)
        search.learn({"rtt_weight": 1.0, "queue_weight": 0.7}, -0.1, 0.02)
    proposals = [search.propose()["queue_weight"] for _ in range(50)]
    assert sum(weight > 1.0 for weight in proposals) > 45


def test_started_again_it_tries_the_last_incumbent_first_and_expects_nothing_of_it() -> None:
    search = Search(HOME, BOX, Random(0))
    better = {"rtt_weight": 1.0, "queue_weight": 2.0}
    search.learn(better, 0.3, 0.02)
    search.accept(better)
    search.restart(HOME)
    assert search.propose() == better
    assert search.expected(better).gain == 0.0
    assert search.propose() != better


def test_failures_alone_make_its_steps_too_small_to_go_on() -> None:
    search = Search(HOME, BOX, Random(0))
    failures = 0
    while not search.converged:
        search.reject()
        failures += 1
    assert search.step == LEAST_STEP
    assert failures < 20
