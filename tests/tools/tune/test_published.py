"""The published tuner, step by step as `gorgo-lb` 0.2.0 does it."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from gorgo.tuner import GaussianESTuner, OnlineTuner
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.tools.tune.published import EvolutionStrategy, HillClimb

BOX: Final = {"rtt_weight": (0.05, 2.0), "queue_weight": (0.05, 0.5)}
START: Final = {"rtt_weight": 0.5, "queue_weight": 0.1}


def package_strategy(seed: int) -> Any:
    return GaussianESTuner(START, BOX, sigma=0.5, sigma_min=0.05, max_steps=10_000, seed=seed)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.lists(st.floats(-100.0, -0.001), min_size=1, max_size=60))
def test_the_strategy_proposes_and_accepts_as_the_package(seed: int, scores: list[float]) -> None:
    theirs, ours = package_strategy(seed), EvolutionStrategy(START, BOX, Random(seed))
    for score in scores:
        try:
            proposal = theirs.propose()
        except OverflowError:
            break
        assert ours.propose() == proposal
        if proposal is None:
            break
        assert ours.report(proposal, score) == theirs.report(proposal, score)
        assert (ours.best, ours.best_score, ours.sigma) == (theirs.best_params, theirs.best_score, theirs.sigma)


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 20),
    st.lists(st.floats(0.01, 100.0), min_size=40, max_size=400),
)
def test_windows_and_reports_fall_where_the_package_has_them(
    seed: int, window: int, report_every: int, times: list[float]
) -> None:
    package = OnlineTuner(window_size=window, hop_size=report_every)
    assert package.configure({"hyperparam_ranges": BOX}, active_policy="gorgo-2d", current_defaults=START) is None
    package.online_tuner = package_strategy(seed)
    ours = HillClimb(START, BOX, Random(seed), window=window, report_every=report_every)
    samples, in_force = [], {"defaults": dict(START)}
    for time in times:
        samples.append({"ttft_seconds": time})
        try:
            changed = package.on_sample(samples, in_force, policy="gorgo-2d")
        except OverflowError:  # its step has grown so far
            break
        in_force = changed or in_force
        assert ours.observed(time) == (changed is not None)
        assert ours.weights == {name: in_force["defaults"][name] for name in BOX}


def test_a_worse_score_is_accepted_for_the_tolerance_has_the_wrong_sign() -> None:
    strategy = EvolutionStrategy(START, BOX, Random(0))
    strategy.report(START, -2.0)
    assert strategy.report({"rtt_weight": 1.0, "queue_weight": 0.2}, -2.009)
