"""One number for latency and quality, as in the paper's worked example."""

from __future__ import annotations

import numpy as np

from fairlead.tools.plan.objective import LeastLatency, MostQuality


def test_the_papers_worked_example_gives_its_numbers() -> None:
    objective = LeastLatency(least_quality=0.90, utopia=0.95, nadir=0.75, penalty=100)
    scores = objective.score(np.array([11.0, 11.4, 12.2]), np.array([0.88, 0.91, 0.93]))
    np.testing.assert_allclose(scores, [21.0, 11.4, 12.2])
    assert objective.met(np.array([11.0, 11.4, 12.2]), np.array([0.88, 0.91, 0.93])).tolist() == [False, True, True]


def test_with_a_latency_limit_the_best_quality_within_it_wins() -> None:
    objective = MostQuality(most_latency=12.0, fastest=10.0, slowest=20.0, penalty=100)
    latency, quality = np.array([11.0, 11.4, 12.2]), np.array([0.88, 0.91, 0.93])
    assert objective.score(latency, quality).argmin() == 1
    assert objective.met(latency, quality).tolist() == [True, True, False]
