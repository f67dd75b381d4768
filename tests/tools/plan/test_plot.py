"""The picture of a plan: the star is where the table says, and nothing hides anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.tools.plan.make import Made, make_plan
from fairlead.tools.plan.plot import plan_figure
from fairlead.tools.plan.search import Aim
from tests.tools.pictures import overlaps
from tests.tools.plan.world import profile, settings


@pytest.fixture(scope="module")
def made() -> Made:
    return make_plan(settings(8, 2.0, models=2, max_pp=1), profile(120, models=2, answers=0.25), Aim(least_quality=55))


def test_nothing_lies_over_something_else(made: Made) -> None:
    assert overlaps(plan_figure(made)) == []


def test_names_of_models_that_are_equally_good_stand_apart(made: Made) -> None:
    alike = replace(made, plan=replace(made.plan, nadir=made.plan.utopia - 0.1))
    assert overlaps(plan_figure(alike)) == []


def test_the_star_is_at_the_times_and_quality_of_the_plan_s_table(made: Made) -> None:
    (axes,) = plan_figure(made).get_axes()
    (star,) = [line for line in axes.get_lines() if line.get_marker() == "*"]
    slowest_s = max(stage.latency.p95_ms for stage in made.plan.stages) / 1e3
    assert (np.ravel(star.get_xdata())[0], np.ravel(star.get_ydata())[0]) == (slowest_s, made.plan.quality)
    assert f"{slowest_s:.3g} s" in str(star.get_label())
    assert axes.get_xlim()[0] <= slowest_s <= axes.get_xlim()[1]
