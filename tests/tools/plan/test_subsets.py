"""A plan uses the models that it is better with, and tells what the others would give."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.tools.plan.explain import explain
from fairlead.tools.plan.make import Made, make_plan
from fairlead.tools.plan.plan_file import read_plan, write_plan
from fairlead.tools.plan.search import Aim, UnreachableError
from fairlead.tools.plan.settings import CascadeSettings
from fairlead.tools.plan.subsets import Models, try_subsets
from tests.tools.plan.world import LARGE, MEDIUM, SMALL, profile, settings

SAMPLE = profile(120, answers=0.1)
AIM = Aim(least_quality=60)


@pytest.fixture(scope="module")
def without_the_middle() -> Made:
    """The medium model is dense and computes more for a token than the large one."""
    return make_plan(settings(16, 20.0, max_pp=1), SAMPLE, AIM)


def tried(models: int) -> list[Models]:
    asked: list[Models] = []

    def plan(part: Models) -> UnreachableError:
        asked.append(part)
        return UnreachableError("no", "try another")

    try_subsets(models, AIM, plan)
    return asked


def test_every_part_of_a_cascade_of_three_is_planned_once() -> None:
    assert sorted(tried(3)) == [(0,), (0, 1), (0, 1, 2), (0, 2), (1,), (1, 2), (2,)]


def test_of_many_models_every_single_one_and_a_bounded_number_of_parts_are_planned() -> None:
    asked = tried(8)
    assert len(asked) == len(set(asked)) <= 8 * 9 // 2 + 8
    assert {(index,) for index in range(8)} < set(asked)


def test_a_model_that_the_cascade_is_better_without_is_left_out(without_the_middle: Made) -> None:
    plan = without_the_middle.plan
    assert [stage.model for stage in plan.stages] == [SMALL, LARGE]
    assert len(plan.thresholds) == 1
    assert plan.quality >= 60
    assert f"Without {MEDIUM} the cascade does better." in list(explain(plan))


def test_no_other_part_is_quicker_and_what_misses_the_aim_says_why(without_the_middle: Made) -> None:
    plan = without_the_middle.plan
    others = {other.models: other for other in plan.alternatives}
    assert {(LARGE,), (MEDIUM,), (SMALL,)} < set(others)
    for other in plan.alternatives:
        assert other.fault or (other.quality >= 60 and other.p95_ms >= 0.98 * plan.end_to_end.p95_ms)
    assert "quality 60 is above" in others[SMALL,].fault


def test_where_the_last_model_alone_wins_it_is_planned_alone(tmp_path: Path) -> None:
    document = settings(4, 4.0, models=2, max_pp=1).model_dump()
    document["models"] = [{**document["models"][0], "name": name} for name in (SMALL, MEDIUM)]  # better, and no slower
    made = make_plan(CascadeSettings.model_validate(document), SAMPLE.of((0, 1)), AIM)
    assert [(stage.model, stage.share) for stage in made.plan.stages] == [(MEDIUM, 1.0)]
    write_plan(tmp_path / "plan.yaml", made.plan)
    reported = list(explain(read_plan(tmp_path / "plan.yaml")))
    assert f"No cascade of these models does better than {MEDIUM} alone: serve it without one." in reported
    assert f"{SMALL} + {MEDIUM}: p95" in "\n".join(reported)


def test_on_demand_no_model_is_left_out() -> None:
    plan = make_plan(settings(16, 20.0, max_pp=1), SAMPLE, AIM, whole=True).plan
    assert [stage.model for stage in plan.stages] == [SMALL, MEDIUM, LARGE]
    assert plan.alternatives == ()
