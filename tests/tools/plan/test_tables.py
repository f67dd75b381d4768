"""The six plans of the paper's tables 2 and 3, as its authors report them, are plans here too."""

from __future__ import annotations

import pytest

from fairlead.tools.plan.capacity import Strategy
from fairlead.tools.plan.hardware import Shape
from fairlead.tools.plan.plan import StagePlan, faults
from fairlead.tools.plan.prediction import Latency

IDLE = Latency(0.0, 0.0, 0.0, 0.0)


def replicas(*each: tuple[int, int, int]) -> Strategy:
    """(DP, TP, PP) as the paper writes them."""
    return tuple((Shape(tp, pp), dp) for dp, tp, pp in each)


# (quality, trace): thresholds, shares in percent, GPUs, strategies.
PAPER: dict[tuple[int, int], tuple[tuple[int, int], tuple[int, ...], tuple[int, ...], tuple[Strategy, ...]]] = {
    (90, 1): ((99, 91), (100, 94, 50), (4, 8, 20),
              (replicas((4, 1, 1)), replicas((2, 4, 1)), replicas((1, 4, 3), (1, 8, 1)))),
    (85, 1): ((74, 64), (100, 62, 21), (4, 12, 16),
              (replicas((2, 2, 1)), replicas((6, 2, 1)), replicas((2, 8, 1)))),
    (80, 1): ((69, 25), (100, 54, 11), (6, 14, 12),
              (replicas((6, 1, 1)), replicas((5, 2, 1), (1, 4, 1)), replicas((1, 4, 3)))),
    (80, 2): ((61, 18), (100, 31, 3), (8, 16, 8),
              (replicas((6, 1, 1), (1, 2, 1)), replicas((8, 2, 1)), replicas((1, 8, 1)))),
    (80, 3): ((32, 0), (100, 23, 0), (18, 14, 0),
              (replicas((10, 1, 1), (4, 2, 1)), replicas((2, 4, 1), (3, 2, 1)), ())),
    (70, 3): ((10, 0), (100, 5, 0), (24, 8, 0),
              (replicas((16, 1, 1), (4, 2, 1)), replicas((4, 2, 1)), ())),
}  # fmt: skip


@pytest.mark.parametrize("case", PAPER)
def test_the_papers_plan_is_a_plan_for_32_gpus(case: tuple[int, int]) -> None:
    thresholds, shares, gpus, strategies = PAPER[case]
    stages = stages_of(shares, gpus, strategies)
    assert faults(thresholds, stages, 32) == []
    assert sum(stage.gpus for stage in stages) == 32


def test_a_plan_whose_replicas_cost_more_than_is_allocated_is_reported() -> None:
    thresholds, shares, _, strategies = PAPER[(80, 1)]
    assert "replicas need 14" in faults(thresholds, stages_of(shares, (6, 12, 12), strategies), 32)[0]


def test_shares_that_grow_along_the_cascade_are_reported() -> None:
    thresholds, _, gpus, strategies = PAPER[(80, 1)]
    assert "before it fewer" in faults(thresholds, stages_of((100, 11, 54), gpus, strategies), 32)[0]


def stages_of(shares: tuple[int, ...], gpus: tuple[int, ...], strategies: tuple[Strategy, ...]) -> list[StagePlan]:
    return [
        StagePlan(f"c{index}", share / 100, count, strategy, IDLE)
        for index, (share, count, strategy) in enumerate(zip(shares, gpus, strategies, strict=True), start=1)
    ]
